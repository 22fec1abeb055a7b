/* emu_fault.c - what the environment asks of the emulated driver.
 *
 * INFERD_EMU_FAIL   symbol:nth:code[:sticky],...  the nth call of that function returns code; nth
 *                   "3+": the third and all later. sticky: every later call of the driver, too.
 * INFERD_EMU_ARCH   75, 80, 90    compute capability
 * INFERD_EMU_DRIVER 12040         what cuDriverGetVersion says
 * INFERD_EMU_DEVICES 1            0: no device
 * INFERD_EMU_MEM    1073741824    bytes of the device
 * INFERD_EMU_SYNC   1             run everything at once instead of at the next synchronisation
 * INFERD_EMU_LOG    1             say on stderr what failed and why (always said: kernel faults)
 * A file cuda_emu.conf beside the library may hold the same, one NAME=VALUE a line: workers
 * have no environment.
 * Read at each call, so a test may change them; a changed INFERD_EMU_FAIL starts its counts anew
 * and forgives a sticky error, as a new process would.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emu_drv.h"

#define MAX_FAULTS 16

static struct {
    char text[512];
    int n;
    struct {
        char symbol[48];
        unsigned long nth, calls;
        bool later, sticky;
        int code;
    } f[MAX_FAULTS];
    int lost;
} st;

static __attribute__((constructor)) void conf_read(void)
{
    Dl_info me;
    char path[4096], line[512], *eq;
    const char *slash;
    FILE *f;

    if (!dladdr((void *)conf_read, &me) || !me.dli_fname || !(slash = strrchr(me.dli_fname, '/')))
        return;
    snprintf(path, sizeof(path), "%.*s/cuda_emu.conf", (int)(slash - me.dli_fname), me.dli_fname);
    if (!(f = fopen(path, "re")))
        return;
    while (fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = '\0';
        if ((eq = strchr(line, '=')) && strncmp(line, "INFERD_EMU_", 11) == 0) {
            *eq = '\0';
            setenv(line, eq + 1, 0);
        }
    }
    fclose(f);
}

unsigned long emu_env(const char *name, unsigned long standard)
{
    const char *s = getenv(name);

    return s && *s ? strtoul(s, NULL, 10) : standard;
}

static void parse(const char *s)
{
    char *save = NULL, buf[sizeof(st.text)], *item;

    if (st.lost)
        emu_drv_reset();
    memset(&st, 0, sizeof(st));
    snprintf(st.text, sizeof(st.text), "%s", s);
    snprintf(buf, sizeof(buf), "%s", s);
    for (item = strtok_r(buf, ",", &save); item; item = strtok_r(NULL, ",", &save)) {
        char nth[16] = "", rest[16] = "";
        int i = st.n;

        if (i == MAX_FAULTS ||
            sscanf(item, "%47[^:]:%15[^:]:%d:%15s", st.f[i].symbol, nth, &st.f[i].code, rest) < 3) {
            fprintf(stderr, "cuda_emu: INFERD_EMU_FAIL '%s': expected symbol:nth:code[:sticky]\n",
                    item);
            abort();
        }
        st.f[i].nth = strtoul(nth, NULL, 10);
        st.f[i].later = strchr(nth, '+') != NULL;
        st.f[i].sticky = strcmp(rest, "sticky") == 0;
        st.n++;
    }
}

int emu_fault(const char *symbol)
{
    const char *s = getenv("INFERD_EMU_FAIL");

    if (strcmp(s ? s : "", st.text) != 0)
        parse(s ? s : "");
    if (st.lost)
        return st.lost;
    for (int i = 0; i < st.n; i++) {
        if (strcmp(st.f[i].symbol, symbol) != 0)
            continue;
        st.f[i].calls++;
        if (st.f[i].calls == st.f[i].nth || (st.f[i].later && st.f[i].calls > st.f[i].nth)) {
            if (st.f[i].sticky)
                st.lost = st.f[i].code;
            return st.f[i].code;
        }
    }
    return 0;
}

void emu_lose(int code)
{
    st.lost = code;
}

int emu_lost(void)
{
    return st.lost;
}
