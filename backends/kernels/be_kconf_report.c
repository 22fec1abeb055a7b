/* be_kconf_report.c - the conformance report as one line and as a page.
 * Tests: tests/backends/test_be_kconf.c
 */
#include <stdio.h>

#include "be_kconf_impl.h"

void be_kconf_summary(const struct be_kconf_report *r, char *buf, size_t cap)
{
    char skipped[48] = "";

    if (r->n_skipped)
        snprintf(skipped, sizeof(skipped), ", %u skipped", r->n_skipped);
    snprintf(buf, cap, "%u/%u kernels, %llu/%llu cases%s", r->n_passed, r->n_kernels,
             (unsigned long long)r->n_cases_passed, (unsigned long long)r->n_cases, skipped);
}

static void row_line(struct be_ktext *t, const struct be_kconf_row *w)
{
    struct be_kconf_tol tol = be_kconf_tol_get(&w->entry->desc);
    char bound[48] = "same bits";

    if (tol.abs > 0 || tol.rel > 0)
        snprintf(bound, sizeof(bound), "%.1g + %.1g rel", tol.abs, tol.rel);
    if (w->skipped)
        be_ktext_add(t, "| `%s` | skipped: %s | | | %s |\n", w->entry->name, w->why, bound);
    else
        be_ktext_add(t, "| `%s` | %u/%u | %.3g | %.3g | %s |\n", w->entry->name,
                     w->n_cases - w->n_failed, w->n_cases, w->max_abs, w->max_rel, bound);
}

static void reasons(struct be_ktext *t, const struct be_kconf_report *r)
{
    const char *last = "";

    for (uint32_t i = 0; i < r->n_kernels; i++) {
        struct be_kconf_tol tol = be_kconf_tol_get(&r->rows[i].entry->desc);

        if ((tol.abs > 0 || tol.rel > 0) && strcmp(tol.why, last) != 0) {
            be_ktext_add(t, "- from `%s`: %s.\n", r->rows[i].entry->name, tol.why);
            last = tol.why;
        }
    }
}

char *be_kconf_markdown(const struct be_kconf_report *r)
{
    struct be_ktext t = {0};
    const char *lib = "";
    char sum[128];

    be_kconf_summary(r, sum, sizeof(sum));
    be_ktext_add(&t,
                 "# Kernel conformance\n\n"
                 "Written by `inferd-worker verify-kernels`; do not edit. Device: %s.\n\n"
                 "**%s.** Each case compares a launch with the CPU executor of the kernel's IR: "
                 "values, elements\n"
                 "never written, bytes beside the outputs, changed inputs, a second launch, and "
                 "that a changed\n"
                 "input row changes its own output row only. `abs` and `rel` are the largest "
                 "differences of finite\n"
                 "elements, `rel` to the largest value of the output.\n",
                 r->device, sum);
    for (uint32_t i = 0; i < r->n_kernels; i++) {
        const struct be_kconf_row *w = &r->rows[i];

        if (strcmp(lib, w->entry->lib) != 0) {
            lib = w->entry->lib;
            be_ktext_add(
                &t, "\n## %s\n\n| kernel | cases | abs | rel | bound |\n|---|---|---|---|---|\n",
                lib);
        }
        row_line(&t, w);
    }
    be_ktext_add(&t, "\n## Bounds other than the same bits\n\n");
    reasons(&t, r);
    for (uint32_t i = 0; i < r->n_kernels; i++)
        if (r->rows[i].n_failed)
            be_ktext_add(&t, "\n**Failed** %s\n", r->rows[i].why);
    if (t.failed) {
        be_ktext_deinit(&t);
        return NULL;
    }
    return t.p;
}
