/* sup_api_test.h - how a test of an endpoint begins: cmocka, the fake request and fleet, a fresh
 * one for each case, and what an answer must hold. Include in exactly one .c per program, behind
 * TEST_MODELS if the endpoint needs more than the first two models of the fake fleet.
 */
#ifndef SUP_API_TEST_H
#define SUP_API_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ipc.h"
#include "sup_api_fake.h"

#ifndef TEST_MODELS
#define TEST_MODELS 2
#endif

static inline int setup(void **state)
{
    (void)state;
    fake_setup();
    T.fleet.n_models = TEST_MODELS;
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    fake_teardown();
    return 0;
}

static inline void assert_has(const char *part)
{
    if (!strstr(fake_answer(), part)) {
        print_error("answer: %s\nlacks:  %s\n", fake_answer(), part);
        fail();
    }
}

static inline bool is(ProtobufCBinaryData b, const char *s)
{
    return b.len == strlen(s) && memcmp(b.data, s, b.len) == 0;
}

#endif
