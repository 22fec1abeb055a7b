/* test_sup_http_origin.c - which pages of a browser may ask. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sup_http_priv.h"

static void pages(void **state)
{
    static char *const listed[] = {(char *)"https://chat.example", (char *)"null", NULL};
    static char *const any[] = {(char *)"*", NULL};
    static const struct {
        const char *origin, *host;
        char *const *allowed;
        bool ok;
    } rows[] = {
        {"http://127.0.0.1:8090", "127.0.0.1:8090", NULL, true},
        {"http://localhost:8090", "LOCALHOST:8090", NULL, true},
        {"http://[::1]:8090", "[::1]:8090", NULL, true},
        {"https://10.0.0.5", "10.0.0.5", NULL, true},
        /* another site, or another port of this machine */
        {"https://evil.example", "127.0.0.1:8090", NULL, false},
        {"http://127.0.0.1:3000", "127.0.0.1:8090", NULL, false},
        {"http://127.0.0.1", "127.0.0.1:8090", NULL, false},
        /* a name rebound to this machine */
        {"http://evil.example:8090", "evil.example:8090", NULL, false},
        {"http://127.0.0.1.evil.example", "127.0.0.1.evil.example", NULL, false},
        {"http://localhost.evil.example", "localhost.evil.example", NULL, false},
        {"http://127.1", "127.1", NULL, false},
        {"http://[::1", "[::1", NULL, false},
        {"http://[evil]", "[evil]", NULL, false},
        {"null", "127.0.0.1:8090", NULL, false},
        {"", "", NULL, false},
        {"://", "", NULL, false},
        {"http://127.0.0.1:8090", NULL, NULL, false}, /* HTTP/1.0 */
        {"127.0.0.1:8090", "127.0.0.1:8090", NULL, false},
        /* as the operator says */
        {"https://chat.example", "api.example", listed, true},
        {"HTTPS://chat.example", "127.0.0.1:8090", listed, true},
        {"https://chat.example:444", "127.0.0.1:8090", listed, false},
        {"https://chat.example.evil", "127.0.0.1:8090", listed, false},
        {"null", "127.0.0.1:8090", listed, true},
        {"http://127.0.0.1:8090", "127.0.0.1:8090", listed, true},
        {"https://evil.example", "evil.example", any, true},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (sup_origin_ok(rows[i].origin, rows[i].host, rows[i].allowed) != rows[i].ok)
            fail_msg("row %zu: %s at %s", i, rows[i].origin, rows[i].host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(pages)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
