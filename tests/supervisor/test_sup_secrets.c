/* test_sup_secrets.c - credentials: sealed for one origin under one key, and opened by nothing
 * else; the master key's file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <sodium.h>
#include <sys/stat.h>

#include "fleet_util.h"
#include "sup_secrets.h"

static const uint8_t master[32] = "0123456789abcdef0123456789abcde", other[32] = "another";

static void set(struct sup_secrets *s, const char *origin, const char *value)
{
    struct rc_err err = RC_ERR_INIT;

    if (sup_secrets_set(s, origin, value, strlen(value), 7, master, &err) != RC_OK)
        fail_msg("%s", err.msg);
}

static void origins(void **state)
{
    static const struct {
        const char *text, *plain; /* NULL = refused */
    } rows[] = {
        {"https://Example.org", "https://example.org:443"},
        {"https://example.org/", "https://example.org:443"},
        {"https://example.org:8443", "https://example.org:8443"},
        {"http://127.0.0.1:80", "http://127.0.0.1:80"},
        {"http://127.0.0.1", "http://127.0.0.1:80"},
        {"https://[2001:DB8::1]:1", "https://[2001:db8::1]:1"},
        {"https://[2001:db8::1]", "https://[2001:db8::1]:443"},
        {"", NULL},
        {"example.org", NULL},
        {"HTTPS://example.org", NULL},
        {"ftp://example.org", NULL},
        {"https://", NULL},
        {"https://:443", NULL},
        {"https://a:0", NULL},
        {"https://a:65536", NULL},
        {"https://a:", NULL},
        {"https://a:4x", NULL},
        {"https://a:443/", NULL},
        {"https://a/b", NULL},
        {"https://user@a", NULL},
        {"https://a b", NULL},
        {"https://a?x", NULL},
        {"https://[::1", NULL},
        {"https://[]", NULL},
        {"https://[::1]x", NULL},
        {"https://.a", NULL},
        {"https://\xc3\xa4", NULL},
    };
    char out[SUP_ORIGIN_MAX];

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        enum rc rc = sup_origin_parse(out, rows[i].text, NULL);

        if (rc != (rows[i].plain ? RC_OK : RC_INVALID))
            fail_msg("'%s' judged wrongly", rows[i].text);
        if (rows[i].plain)
            assert_string_equal(out, rows[i].plain);
    }
    for (int kind = 0; kind < 2; kind++) { /* the longest host, as a name and as an address */
        const int most = kind ? 47 : 253;

        for (int n = most; n <= most + 1; n++) {
            char host[255], text[300];

            memset(host, kind ? '1' : 'a', sizeof(host));
            if (kind)
                host[0] = '[', host[n - 1] = ']';
            snprintf(text, sizeof(text), "https://%.*s:65535", n, host);
            assert_int_equal(sup_origin_parse(out, text, NULL), n == most ? RC_OK : RC_INVALID);
            if (n == most)
                assert_string_equal(out, text);
        }
    }
}

static void what_is_sealed_opens_for_its_origin_alone(void **state)
{
    struct sup_secrets s = {0}, again = {0};
    struct rc_err err = RC_ERR_INIT;
    struct sup_json o = {0};
    size_t n = 0;

    (void)state;
    set(&s, "https://b:443", "Bearer bbb");
    set(&s, "https://a:443", "Bearer aaaa");
    set(&s, "https://b:443", "Bearer second");
    assert_int_equal(s.n, 2);
    assert_int_equal(s.row[1].rotated_s, 7);
    assert_null(sup_secrets_get(&s, "https://a:443", &n)); /* not opened yet */
    sup_secrets_print(&s, &o);
    assert_null(memmem(o.p, o.n, "Bearer", 6));
    assert_int_equal(sup_secrets_parse(&again, o.p, o.n, &err), RC_OK);
    assert_int_equal(sup_secrets_open(&again, master, &err), RC_OK);
    assert_memory_equal(sup_secrets_get(&again, "https://b:443", &n), "Bearer second", 13);
    assert_int_equal(n, 13);
    assert_memory_equal(sup_secrets_get(&again, "https://a:443", &n), "Bearer aaaa", 11);
    assert_null(sup_secrets_get(&again, "https://a:444", &n));
    assert_null(sup_secrets_get(&again, "http://a:443", &n));
    assert_null(sup_secrets_get(&again, "https://a:443/", &n));
    assert_null(sup_secrets_get(&again, "", &n));
    /* another key, a swapped row, a turned bit */
    assert_int_equal(sup_secrets_open(&again, other, &err), RC_CONFLICT);
    assert_null(sup_secrets_get(&again, "https://a:443", &n));
    struct sup_sealed was = again.row[0];
    again.row[0].box = again.row[1].box, again.row[0].n_box = again.row[1].n_box;
    memcpy(again.row[0].nonce, again.row[1].nonce, sizeof(was.nonce));
    assert_int_equal(sup_secrets_open(&again, master, &err), RC_CONFLICT);
    assert_string_equal(err.what, "https://a:443");
    again.row[0] = was;
    for (size_t i = 0; i < was.n_box; i++) {
        was.box[i] ^= 1;
        assert_int_equal(sup_secrets_open(&again, master, &err), RC_CONFLICT);
        was.box[i] ^= 1;
    }
    assert_int_equal(sup_secrets_open(&again, master, &err), RC_OK);
    assert_int_equal(sup_secrets_reseal(&again, other, &err), RC_OK);
    assert_int_equal(sup_secrets_open(&again, master, &err), RC_CONFLICT);
    assert_int_equal(sup_secrets_open(&again, other, &err), RC_OK);
    assert_memory_equal(sup_secrets_get(&again, "https://b:443", &n), "Bearer second", 13);
    assert_true(sup_secrets_remove(&again, "https://a:443"));
    assert_false(sup_secrets_remove(&again, "https://a:443"));
    assert_int_equal(again.n, 1);
    sup_json_deinit(&o);
    sup_secrets_deinit(&s);
    sup_secrets_deinit(&again);
}

static void what_cannot_be_sealed(void **state)
{
    struct sup_secrets s = {0};
    char big[SUP_SECRET_BYTES + 1], origin[40];

    (void)state;
    memset(big, 'x', sizeof(big));
    assert_int_equal(sup_secrets_set(&s, "https://a:1", "", 0, 1, master, NULL), RC_INVALID);
    assert_int_equal(sup_secrets_set(&s, "https://a:1", "a\nb", 3, 1, master, NULL), RC_INVALID);
    assert_int_equal(sup_secrets_set(&s, "https://a:1", "a\0b", 3, 1, master, NULL), RC_INVALID);
    assert_int_equal(sup_secrets_set(&s, "https://a:1", big, sizeof(big), 1, master, NULL),
                     RC_INVALID);
    assert_int_equal(s.n, 0);
    for (unsigned i = 0; i <= SUP_SECRETS_MAX; i++) {
        snprintf(origin, sizeof(origin), "https://h%u:443", i);
        assert_int_equal(sup_secrets_set(&s, origin, big, SUP_SECRET_BYTES, 1, master, NULL),
                         i < SUP_SECRETS_MAX ? RC_OK : RC_LIMIT);
    }
    struct sup_json o = {0};
    struct sup_secrets again = {0};

    sup_secrets_print(&s, &o);
    assert_true(o.n <= SUP_SECRETS_FILE_BYTES);
    assert_int_equal(sup_secrets_parse(&again, o.p, o.n, NULL), RC_OK);
    assert_int_equal(sup_secrets_open(&again, master, NULL), RC_OK);
    sup_json_deinit(&o);
    sup_secrets_deinit(&again);
    sup_secrets_deinit(&s);
}

#define NONCE "\"nonce\":\"000102030405060708090a0b0c0d0e0f1011121314151617\""
#define ROW(origin, more) \
    "{\"origin\":\"" origin "\",\"created\":1,\"rotated\":0," NONCE ",\"sealed\":\"" more "\"}"
#define BOX "AAECAwQFBgcICQoLDA0ODxAREhMUFRYX"
#define ALL(rows) "{\"version\":1,\"credentials\":[" rows "]}"

static void what_a_file_may_not_hold(void **state)
{
    static const char *const rows[] = {
        "",
        "[]",
        "{}",
        "{\"version\":2,\"credentials\":[]}",
        "{\"version\":1,\"credentials\":{}}",
        "{\"version\":1,\"credentials\":[],\"x\":1}",
        ALL("7"),
        ALL(ROW("https://a", BOX)), /* without its port */
        ALL(ROW("https://A:443", BOX)),
        ALL(ROW("https://a:443", "")),
        ALL(ROW("https://a:443", "AAAA")), /* shorter than its tag */
        ALL(ROW("https://a:443", "****")),
        ALL(ROW("https://a:443", BOX) "," ROW("https://a:443", BOX)),
        ALL("{\"origin\":\"https://a:443\",\"created\":1,\"rotated\":0,\"sealed\":\"" BOX "\"}"),
        ALL("{\"origin\":\"https://a:443\",\"created\":-1,\"rotated\":0," NONCE ",\"sealed\":\"" BOX
            "\"}"),
    };
    static const char good[] = ALL(ROW("https://a:443", BOX));
    struct sup_secrets s = {0};

    (void)state;
    assert_int_equal(sup_secrets_parse(&s, good, sizeof(good) - 1, NULL), RC_OK);
    assert_int_equal(sup_secrets_open(&s, master, NULL), RC_CONFLICT);
    sup_secrets_deinit(&s);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (sup_secrets_parse(&s, rows[i], strlen(rows[i]), NULL) != RC_FORMAT)
            fail_msg("row %zu was read", i);
}

static void how_a_master_key_may_be_written(void **state)
{
    static const char hex[] = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
                      b64[] = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
                      url[] = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
    static const struct {
        const char *text;
        bool ok;
    } rows[] = {{hex, true},
                {b64, true},
                {url, true},
                {"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n", true},
                {"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\r\n", true},
                {"00", false},
                {"", false},
                {"gg0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f", false},
                {"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8*", false}};
    uint8_t want[32], got[32];

    (void)state;
    for (int i = 0; i < 32; i++)
        want[i] = (uint8_t)i;
    assert_int_equal(sup_master_parse(got, (const char *)want, 32, NULL), RC_OK);
    assert_memory_equal(got, want, 32);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        enum rc rc = sup_master_parse(got, rows[i].text, strlen(rows[i].text), NULL);

        if ((rc == RC_OK) != rows[i].ok)
            fail_msg("row %zu judged wrongly", i);
        if (rows[i].ok)
            assert_memory_equal(got, want, 32);
    }
}

static void where_a_master_key_lies(void **state)
{
    uint8_t *key = NULL;
    struct rc_err err = RC_ERR_INIT;

    (void)state;
    tmp_make();
    assert_int_equal(sup_master_read(&key, "", NULL, &err), RC_OK);
    assert_null(key);
    assert_int_equal(sup_master_read(&key, NULL, tmp_dir, &err), RC_OK); /* none in there */
    assert_null(key);
    assert_int_equal(sup_master_read(&key, tmp_path("absent"), NULL, &err), RC_NOT_FOUND);
    tmp_write(SUP_MASTER_CREDENTIAL, "0123456789abcdef0123456789abcdef");
    MUST(chmod(tmp_path(SUP_MASTER_CREDENTIAL), 0440) == 0);
    assert_int_equal(sup_master_read(&key, NULL, tmp_dir, &err), RC_OK);
    assert_memory_equal(key, "0123456789abcdef0123456789abcdef", 32);
    sup_master_free(&key);
    MUST(symlink(SUP_MASTER_CREDENTIAL, tmp_path("link")) == 0); /* as Kubernetes mounts it */
    assert_int_equal(sup_master_read(&key, tmp_path("link"), NULL, &err), RC_OK);
    sup_master_free(&key);
    for (int i = 0; i < 3; i++) {
        MUST(chmod(tmp_path(SUP_MASTER_CREDENTIAL), (mode_t[]){0444, 0460, 0402}[i]) == 0);
        assert_int_equal(sup_master_read(&key, NULL, tmp_dir, &err), RC_CONFLICT);
    }
    assert_int_equal(sup_master_read(&key, tmp_dir, NULL, &err), RC_FORMAT);
    tmp_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(origins),
        cmocka_unit_test(what_is_sealed_opens_for_its_origin_alone),
        cmocka_unit_test(what_cannot_be_sealed),
        cmocka_unit_test(what_a_file_may_not_hold),
        cmocka_unit_test(how_a_master_key_may_be_written),
        cmocka_unit_test(where_a_master_key_lies),
    };
    if (sodium_init() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
