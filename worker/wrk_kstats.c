/* wrk_kstats.c - see wrk_kstats.h. */
#include "wrk_kstats.h"

/* be_kstats.by_format is in the order of BE_DTYPE_MAP. */
static const char *const formats[] = {
#define X(name, id, n, b) #name,
    BE_DTYPE_MAP(X)
#undef X
};
#define N_FORMATS (sizeof(formats) / sizeof(formats[0]))
_Static_assert(N_FORMATS <= BE_KSTAT_FORMATS, "a counter for each format");

json_t *wrk_kstats_json(const struct be_kstats *k)
{
    json_t *o = json_object(), *d = json_object(), *f = json_object();

    for (unsigned i = 0; i < BE_KROUTE_COUNT; i++)
        json_object_set_new(d, be_kroute_name((enum be_kroute_kind)i),
                            json_integer((json_int_t)k->dispatch[i]));
    for (size_t i = 0; i < N_FORMATS; i++)
        if (k->by_format[i])
            json_object_set_new(f, formats[i], json_integer((json_int_t)k->by_format[i]));
    json_object_set_new(o, "dispatch", d);
    json_object_set_new(o, "by_format", f);
#define X(name) json_object_set_new(o, #name, json_integer((json_int_t)k->name));
    WRK_KSTATS(X)
#undef X
    return o;
}

void wrk_kstats_msg(struct wrk_kstats_msg *out, const struct be_ctx *be)
{
    ipc__kernel_stats__init(&out->m);
    be_ctx_kstats(be, &out->k);
    out->m.n_dispatch = BE_KROUTE_COUNT;
    out->m.dispatch = out->k.dispatch;
    out->m.n_by_format = N_FORMATS;
    out->m.by_format = out->k.by_format;
#define X(name) out->m.name = out->k.name;
    WRK_KSTATS(X)
#undef X
}
