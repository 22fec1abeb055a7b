/* test_be_kptx.c - PTX in fewer bytes: what is dropped, what gets a short name, what keeps its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "be_kgen.h"

#define LONG4(s) s s s s
#define LONG_OUT LONG4(LONG4(LONG4(LONG4("x100,")))) "d1;\n"
#define LONG(s) LONG4(LONG4(LONG4(LONG4(s)))) "%rd1;\n"

static const struct {
    const char *what, *ptx, *want;
} rows[] = {
    {"comments, blanks and empty lines go", "// made\n\n\tadd.s32 \t%r1, %r2, 3; // why\n",
     "add.s32 r1,r2,3;\n"},
    {"directives keep their blanks", ".maxntid 256, 1, 1\n", ".maxntid 256, 1, 1\n"},
    {"registers of every kind", "\t.reg .f32 \t%f<7>;\nx %rd12,%rs3,%fd4,%r5,%f6,%p7;\n",
     ".reg .f32 x<7>;\nx d12,h3,y4,r5,x6,p7;\n"},
    {"a guard", "@!%p12 bra $L__BB3_45;\n$L__BB3_45:\n", "@!p12 bra $3_45;\n$3_45:\n"},
    {"special registers are others",
     "mov.u32 %r1, %tid.x;\nmov.u32 %r2, %reserved0;\nmov.u32 %r3, %pm1;\n",
     "mov.u32 r1,%tid.x;\nmov.u32 r2,%reserved0;\nmov.u32 r3,%pm1;\n"},
    {"the parameter", "ld.param.u32 %r1, [kx_a_param_0+8];\nmov.b64 %rd1, kx_a_param_0;\n",
     "ld.param.u32 r1,[a+8];\nmov.b64 d1,a;\n"},
    {"entries, shared memory and a second parameter keep their names",
     ".visible .entry kx_param_0_x(\n.shared .align 4 .b8 "
     "_ZZ1aE3buf[64];\n[kx_a_param_1];\n_param_0\n",
     ".visible .entry kx_param_0_x(\n.shared .align 4 .b8 "
     "_ZZ1aE3buf[64];\n[kx_a_param_1];\n_param_0\n"},
    {"braces of vectors", "st.shared.v2.f32 [%rd1+16], {%f1, %f2};\n",
     "st.shared.v2.f32 [d1+16],{x1,x2};\n"},
    {"no end of line", "ret;", "ret;\n"},
    {"a line as long as a warpgroup's product", LONG("%f100, "), LONG_OUT},
};

static void names_and_blanks(void **state)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct be_ktext t = {0};

        be_kptx_add(&t, rows[i].ptx);
        assert_false(t.failed);
        if (strcmp(t.p, rows[i].want) != 0)
            fail_msg("%s: '%s', expected '%s'", rows[i].what, t.p, rows[i].want);
        be_ktext_deinit(&t);
    }
}

/* Nothing but data is as long; it has no names of an entry. */
static void endless_lines_stay(void **state)
{
    struct be_ktext t = {0};
    char line[3000];

    memset(line, '1', sizeof(line) - 1);
    line[sizeof(line) - 1] = '\0';
    be_kptx_add(&t, line);
    assert_int_equal(t.n, sizeof(line));
    assert_memory_equal(t.p, line, sizeof(line) - 1);
    be_ktext_deinit(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_blanks),
        cmocka_unit_test(endless_lines_stay),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
