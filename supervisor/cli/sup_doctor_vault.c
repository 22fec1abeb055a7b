/* sup_doctor_vault.c - `inferd doctor` looks at the folder of keys as the vault would.
 * Tests: tests/e2e/keys.py, tests/e2e/cli_doctor.py */
#include "sup_doctor.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "sup_keys.h"
#include "sup_secrets.h"
#include "sup_vault_dir.h"

static void look_at_keys(struct sup_doctor *d, const struct sup_conf *c, int dir_fd)
{
    uint64_t now = (uint64_t)time(NULL);
    struct rc_err err = RC_ERR_INIT;
    struct sup_keys keys = {0};
    size_t active = 0;

    if (sup_keys_load(&keys, dir_fd, c->vault_dir, &err) != RC_OK) {
        sup_doctor_say(d, SUP_FOUND_FAIL, "keys", "%s", err.msg);
        return;
    }
    for (size_t i = 0; i < keys.n; i++)
        active += sup_key_state(&keys.key[i], now)[0] == 'a';
    if (active)
        sup_doctor_say(d, SUP_FOUND_OK, "keys", "'%s' holds %zu keys, %zu active", c->vault_dir,
                       keys.n, active);
    else
        sup_doctor_say(d, SUP_FOUND_WARN, "keys",
                       "'%s' holds no active key: nobody could ask; 'inferd keys create'",
                       c->vault_dir);
    sup_keys_deinit(&keys);
}

static void look_at_secrets(struct sup_doctor *d, const struct sup_conf *c, int dir_fd)
{
    struct rc_err err = RC_ERR_INIT;
    struct sup_secrets s = {0};
    uint8_t *master = NULL;
    enum rc rc;

    if ((rc = sup_secrets_load(&s, dir_fd, c->vault_dir, &err)) == RC_OK && s.n)
        rc = sup_master_read(&master, c->vault_key_file, getenv("CREDENTIALS_DIRECTORY"), &err);
    if (rc == RC_OK && master)
        rc = sup_secrets_open(&s, master, &err);
    if (rc != RC_OK)
        sup_doctor_say(d, SUP_FOUND_FAIL, "credentials", "%s", err.msg);
    else if (s.n && !master)
        sup_doctor_say(d, SUP_FOUND_WARN, "credentials",
                       "%zu are sealed and there is no master key: set vault_key_file", s.n);
    else if (s.n)
        sup_doctor_say(d, SUP_FOUND_OK, "credentials", "%zu, for as many machines", s.n);
    sup_secrets_deinit(&s);
    sup_master_free(&master);
}

void sup_doctor_vault(struct sup_doctor *d, const struct sup_conf *c)
{
    struct rc_err err = RC_ERR_INIT;
    int dir_fd;

    sup_doctor_group(d, "Keys");
    if (!*c->vault_dir) {
        sup_doctor_say(d, SUP_FOUND_NOTE, "vault_dir",
                       "none: no API key is asked for (docs/keys.md)");
        return;
    }
    if (sodium_init() < 0 || sup_vault_dir_open(&dir_fd, c->vault_dir, false, &err) != RC_OK) {
        sup_doctor_say(d, SUP_FOUND_FAIL, "vault_dir", "%s", err.msg);
        return;
    }
    look_at_keys(d, c, dir_fd);
    look_at_secrets(d, c, dir_fd);
    close(dir_fd);
}
