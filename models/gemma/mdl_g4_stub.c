/* mdl_g4_audio.c, mdl_g4_vision.c to come: the interface, refusing. */
#include "mdl_g4_towers.h"

enum rc mdl_g4_vision_config(struct mdl_g4_vision **out, const json_t *config,
                             const json_t *processor, uint32_t d_text, struct rc_err *err)
{
    return rc_fail(err, RC_UNSUPPORTED, "no vision tower in this build");
}

enum rc mdl_g4_vision_plan(struct mdl_g4_vision *x, struct mdl_plan *plan, const char *tower,
                           const char *embed, struct rc_err *err)
{
    return rc_fail(err, RC_UNSUPPORTED, "no vision tower in this build");
}

enum rc mdl_g4_vision_fit(struct mdl_g4_vision *x, struct mdl_plan *plan, struct rc_err *err)
{
    return rc_fail(err, RC_UNSUPPORTED, "no vision tower in this build");
}

uint32_t mdl_g4_vision_max_tokens(const struct mdl_g4_vision *x)
{
    return 0;
}

enum rc mdl_g4_vision_media(const struct mdl_g4_vision *x, const struct mdl_image *in,
                            struct mdl_media **out, struct rc_err *err)
{
    return rc_fail(err, RC_UNSUPPORTED, "no vision tower in this build");
}

enum rc mdl_g4_vision_pass(struct mdl_g4_vision *x, struct be_ctx *be,
                           const struct mdl_media *media, float *soft, bool (*stop)(void *user),
                           void *user, struct rc_err *err)
{
    return rc_fail(err, RC_UNSUPPORTED, "no vision tower in this build");
}

void mdl_g4_vision_free(struct mdl_g4_vision **x, struct be_ctx *be)
{
}

enum rc mdl_g4_audio_config(struct mdl_g4_audio **out, const json_t *config,
                            const json_t *processor, uint32_t d_text, struct rc_err *err)
{
    return rc_fail(err, RC_UNSUPPORTED, "no audio tower in this build");
}

enum rc mdl_g4_audio_plan(struct mdl_g4_audio *x, struct mdl_plan *plan, const char *tower,
                          const char *embed, struct rc_err *err)
{
    return rc_fail(err, RC_UNSUPPORTED, "no audio tower in this build");
}

enum rc mdl_g4_audio_fit(struct mdl_g4_audio *x, struct mdl_plan *plan, struct rc_err *err)
{
    return rc_fail(err, RC_UNSUPPORTED, "no audio tower in this build");
}

uint32_t mdl_g4_audio_max_tokens(const struct mdl_g4_audio *x)
{
    return 0;
}

enum rc mdl_g4_audio_media(const struct mdl_g4_audio *x, const struct mdl_sound *in,
                           struct mdl_media **out, struct rc_err *err)
{
    return rc_fail(err, RC_UNSUPPORTED, "no audio tower in this build");
}

enum rc mdl_g4_audio_pass(struct mdl_g4_audio *x, struct be_ctx *be, const struct mdl_media *media,
                          float *soft, bool (*stop)(void *user), void *user, struct rc_err *err)
{
    return rc_fail(err, RC_UNSUPPORTED, "no audio tower in this build");
}

void mdl_g4_audio_free(struct mdl_g4_audio **x, struct be_ctx *be)
{
}
