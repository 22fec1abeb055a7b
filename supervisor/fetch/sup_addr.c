/* sup_addr.c - the special blocks of IANA's registries, as tables.
 *
 * Sources: the IPv4 and IPv6 Special-Purpose Address Registries (RFC 6890 and its updates),
 * multicast (RFC 5771, RFC 4291), NAT64 (RFC 6052, RFC 8215), 6to4 (RFC 3056), Teredo (RFC 4380),
 * ISATAP has no block. Of IPv6 only 2000::/3 is given out as global unicast, so everything else
 * falls without a row. Tests: tests/supervisor/test_sup_addr.c
 */
#include "sup_addr.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

struct block4 {
    uint32_t base;
    unsigned bits;
};

#define IP4(a, b, c, d) ((uint32_t)(a) << 24 | (uint32_t)(b) << 16 | (uint32_t)(c) << 8 | (d))
static const struct block4 closed4[] = {
    {IP4(0, 0, 0, 0), 8},       /* this network */
    {IP4(10, 0, 0, 0), 8},      /* private */
    {IP4(100, 64, 0, 0), 10},   /* shared by a provider's customers */
    {IP4(127, 0, 0, 0), 8},     /* this machine */
    {IP4(169, 254, 0, 0), 16},  /* link-local, metadata services */
    {IP4(172, 16, 0, 0), 12},   /* private */
    {IP4(192, 0, 0, 0), 24},    /* protocol assignments */
    {IP4(192, 0, 2, 0), 24},    /* documentation */
    {IP4(192, 31, 196, 0), 24}, /* AS112 */
    {IP4(192, 52, 193, 0), 24}, /* AMT */
    {IP4(192, 88, 99, 0), 24},  /* 6to4 relays */
    {IP4(192, 168, 0, 0), 16},  /* private */
    {IP4(192, 175, 48, 0), 24}, /* AS112 */
    {IP4(198, 18, 0, 0), 15},   /* benchmarks */
    {IP4(198, 51, 100, 0), 24}, /* documentation */
    {IP4(203, 0, 113, 0), 24},  /* documentation */
    {IP4(224, 0, 0, 0), 4},     /* multicast */
    {IP4(240, 0, 0, 0), 4},     /* reserved, broadcast */
};

struct block6 {
    uint8_t base[16];
    unsigned bits;
};

static const struct block6 closed6[] = {
    {{0x20, 0x01, 0x00}, 23},             /* protocol assignments: Teredo, ORCHID, ... */
    {{0x20, 0x01, 0x0d, 0xb8}, 32},       /* documentation */
    {{0x26, 0x20, 0x00, 0x4f, 0x80}, 48}, /* AS112 */
    {{0x3f, 0xff}, 20},                   /* documentation */
};

/* Blocks that carry an IPv4 address, and at which byte. */
static const struct {
    struct block6 block;
    size_t at;
} carriers[] = {
    {{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}, 96}, 12}, /* mapped */
    {{{0x00, 0x64, 0xff, 0x9b}, 96}, 12},                   /* NAT64; its private twin is closed */
    {{{0x20, 0x02}, 16}, 2},                                /* 6to4 */
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static bool public4(uint32_t ip)
{
    for (size_t i = 0; i < COUNT(closed4); i++)
        if (((ip ^ closed4[i].base) >> (32 - closed4[i].bits)) == 0)
            return false;
    return true;
}

static bool inside(const struct block6 *b, const uint8_t ip[16])
{
    unsigned whole = b->bits / 8, rest = b->bits % 8;

    return memcmp(b->base, ip, whole) == 0 &&
           (rest == 0 || (b->base[whole] ^ ip[whole]) >> (8 - rest) == 0);
}

static bool public6(const uint8_t ip[16])
{
    for (size_t i = 0; i < COUNT(carriers); i++)
        if (inside(&carriers[i].block, ip)) {
            const uint8_t *v4 = ip + carriers[i].at;

            return public4(IP4(v4[0], v4[1], v4[2], v4[3]));
        }
    for (size_t i = 0; i < COUNT(closed6); i++)
        if (inside(&closed6[i], ip))
            return false;
    return (ip[0] & 0xe0) == 0x20;
}

bool sup_addr_public(const struct sockaddr *a, size_t n_bytes)
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;

    if (n_bytes >= sizeof(v4) && a->sa_family == AF_INET) {
        memcpy(&v4, a, sizeof(v4));
        return public4(ntohl(v4.sin_addr.s_addr));
    }
    if (n_bytes >= sizeof(v6) && a->sa_family == AF_INET6) {
        memcpy(&v6, a, sizeof(v6));
        return v6.sin6_scope_id == 0 && public6(v6.sin6_addr.s6_addr);
    }
    return false;
}

void sup_addr_text(const struct sockaddr *a, size_t n_bytes, char out[SUP_ADDR_TEXT])
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;

    out[0] = '\0';
    if (n_bytes >= sizeof(v4) && a->sa_family == AF_INET) {
        memcpy(&v4, a, sizeof(v4));
        (void)inet_ntop(AF_INET, &v4.sin_addr, out, SUP_ADDR_TEXT);
    } else if (n_bytes >= sizeof(v6) && a->sa_family == AF_INET6) {
        memcpy(&v6, a, sizeof(v6));
        (void)inet_ntop(AF_INET6, &v6.sin6_addr, out, SUP_ADDR_TEXT);
    }
}
