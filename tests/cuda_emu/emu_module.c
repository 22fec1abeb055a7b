/* emu_module.c - PTX text to the kernels compiled in.
 *
 * Takes from PTX what it says of each entry: name, bytes of arguments, launch bound, static
 * shared memory, and the target, which chooses between the text for sm_75 and for
 * sm_80. An entry that is not compiled in, or whose arguments or bound differ from the
 * text's, fails the load: PTX and text are then not of one source.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emu_drv.h"

unsigned emu_arch(void)
{
    return (unsigned)emu_env("INFERD_EMU_ARCH", 80);
}

unsigned emu_shared_optin(void)
{
    return emu_arch() == 90 ? 227u << 10 : emu_arch() >= 80 ? 99u << 10 : 64u << 10;
}

/* Static shared arrays of an entry: _ZZ<length><name>E... [bytes] */
static unsigned static_shared(const char *ptx, const char *name)
{
    char tag[160];
    unsigned n = 0;
    const char *p = ptx, *br, *eol;

    snprintf(tag, sizeof(tag), " _ZZ%zu%sE", strlen(name), name);
    while ((p = strstr(p, ".shared "))) {
        eol = strchr(p, '\n');
        br = strstr(p, tag);
        if (br && (!eol || br < eol) && (br = strchr(br, '[')) && (!eol || br < eol))
            n += (unsigned)strtoul(br + 1, NULL, 10);
        p += 8;
    }
    return n;
}

static int entry(struct cu_mod_s *m, const char *ptx, const char *at, const char *end, char *log,
                 size_t cap)
{
    struct cu_fn_s *f = &m->fn[m->n];
    const char *bound, *br;
    size_t len = strcspn(at, "( \t\r\n");
    unsigned long bytes = 0;

    if (len == 0 || len >= sizeof(f->name)) {
        snprintf(log, cap, "an entry's name of %zu characters", len);
        return CU_INVALID_PTX;
    }
    memcpy(f->name, at, len);
    f->name[len] = '\0';
    if ((br = memchr(at, '[', (size_t)(end - at))))
        bytes = strtoul(br + 1, NULL, 10);
    bound = memmem(at, (size_t)(end - at), ".maxntid", 8);
    f->threads = bound ? (unsigned)strtoul(bound + 8, NULL, 10) : 1024;
    f->static_bytes = static_shared(ptx, f->name);
    f->dyn_max = 48u << 10;
    f->k = emu_find_in(m->lib[0] ? m->lib : NULL, f->name, m->arch);
    if (!f->k)
        snprintf(log, cap, "kernel '%s' for sm_%u is not compiled in", f->name, m->arch);
    else if (f->k->args_bytes != bytes)
        snprintf(log, cap, "kernel '%s': %lu bytes of arguments in PTX, %zu in the text", f->name,
                 bytes, f->k->args_bytes);
    else if (f->k->threads != f->threads)
        snprintf(log, cap, "kernel '%s': %u threads in PTX, %u in the text", f->name, f->threads,
                 f->k->threads);
    else if (f->static_bytes > 48u << 10)
        snprintf(log, cap, "kernel '%s': %u bytes of static shared memory", f->name,
                 f->static_bytes);
    else {
        m->n++;
        return CU_OK;
    }
    return CU_INVALID_PTX;
}

int emu_module_load(struct cu_mod_s **out, const void *image, char *log, size_t cap)
{
    static const char mark[] = ".visible .entry ";
    const char *ptx = image, *p, *next, *target, *source;
    struct cu_mod_s *m;
    int code = CU_OK, n = 0;

    if (memcmp(ptx, "\177ELF", 4) == 0) {
        snprintf(log, cap, "an image of machine code, this device takes PTX");
        return CU_NO_BINARY;
    }
    target = strstr(ptx, ".target sm_");
    if (!strstr(ptx, ".version ") || !target) {
        snprintf(log, cap, "no .version or no .target: not PTX");
        return CU_INVALID_PTX;
    }
    for (p = ptx; (p = strstr(p, mark)); p += sizeof(mark))
        n++;
    m = calloc(1, sizeof(*m));
    if (!m || !(m->fn = calloc((size_t)n + 1, sizeof(*m->fn)))) {
        free(m);
        return CU_OUT_OF_MEMORY;
    }
    m->arch = (unsigned)strtoul(target + 11, NULL, 10);
    if (m->arch > emu_arch()) {
        snprintf(log, cap, "PTX for sm_%u, this device is sm_%u", m->arch, emu_arch());
        code = CU_NO_BINARY;
    }
    if (code == CU_OK && (source = strstr(ptx, EMU_SOURCE_MARK))) {
        source += sizeof(EMU_SOURCE_MARK) - 1;
        if (emu_text_load_as(source, strlen(source), m->arch, m->lib, log, cap) != EMU_OK)
            code = CU_INVALID_PTX;
    }
    for (p = strstr(ptx, mark); p && code == CU_OK; p = next) {
        next = strstr(p + 1, mark);
        code = entry(m, ptx, p + sizeof(mark) - 1, next ? next : p + strlen(p), log, cap);
    }
    if (code == CU_OK)
        *out = m;
    else
        emu_module_free(m);
    return code;
}

void emu_module_free(struct cu_mod_s *m)
{
    free(m->fn);
    free(m);
}
