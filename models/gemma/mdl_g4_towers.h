/* mdl_g4_towers.h - the eyes and ears of the Gemma 4 generation (gemma4_vision, gemma4_audio),
 * for the families that have them: EmbeddingGemma 2, and Gemma 4, which leaves them aside so far.
 *
 * A tower is a part of a model: its owner calls config, plan and fit in the family's hooks of the
 * same names, and free in its free. media turns a picture or a sound into rows of numbers (plain
 * memory, no device); pass runs the tower over one of them and gives soft tokens, the vectors that
 * stand in a text at the placeholders' rows, unscaled.
 * Always true: a medium's soft tokens depend on that medium alone; passes allocate nothing.
 * Source: gemma.md 5, 6 and 10; docs/models/gemma4.md. Tests: tests/models/test_mdl_g4_towers.c
 */
#ifndef INFERD_MDL_G4_TOWERS_H
#define INFERD_MDL_G4_TOWERS_H

#include "mdl_impl.h"

#define MDL_G4_SOUND_RATE 16000u
#define MDL_G4_SOUND_MS 30000u /* of one sound; longer is refused */

struct mdl_g4_vision;
struct mdl_g4_audio;

/* config: "vision_config" / "audio_config" of config.json. processor: processor_config.json, or
 * what it holds as "image_processor" / "feature_extractor", or NULL = the family's defaults.
 * d_text: width of the text model. Errors: RC_FORMAT (field, value, range), RC_UNSUPPORTED
 * (a setting that is understood and not computed here), RC_NOMEM. */
enum rc mdl_g4_vision_config(struct mdl_g4_vision **out, const json_t *config,
                             const json_t *processor, uint32_t d_text, struct rc_err *err);
enum rc mdl_g4_audio_config(struct mdl_g4_audio **out, const json_t *config,
                            const json_t *processor, uint32_t d_text, struct rc_err *err);

/* Names and checks the weights below the prefixes, dot included: "vision_tower.",
 * "embed_vision." (EmbeddingGemma 2), "model.vision_tower." ... (Gemma 4). */
enum rc mdl_g4_vision_plan(struct mdl_g4_vision *v, struct mdl_plan *plan, const char *tower,
                           const char *embed, struct rc_err *err);
enum rc mdl_g4_audio_plan(struct mdl_g4_audio *a, struct mdl_plan *plan, const char *tower,
                          const char *embed, struct rc_err *err);
/* Activations for the largest picture or sound. May be called again (mdl_family.shrink). */
enum rc mdl_g4_vision_fit(struct mdl_g4_vision *v, struct mdl_plan *plan, struct rc_err *err);
enum rc mdl_g4_audio_fit(struct mdl_g4_audio *a, struct mdl_plan *plan, struct rc_err *err);

/* Most soft tokens of one picture / sound. */
uint32_t mdl_g4_vision_max_tokens(const struct mdl_g4_vision *v);
uint32_t mdl_g4_audio_max_tokens(const struct mdl_g4_audio *a);

/* Errors as mdl_media_image and mdl_media_sound. Thread rule: none, the tower is only read. */
enum rc mdl_g4_vision_media(const struct mdl_g4_vision *v, const struct mdl_image *img,
                            struct mdl_media **out, struct rc_err *err);
enum rc mdl_g4_audio_media(const struct mdl_g4_audio *a, const struct mdl_sound *snd,
                           struct mdl_media **out, struct rc_err *err);

/* soft: host [media->n_tokens, d_text]. stop (or NULL) is asked between layers: true ends the pass
 * with RC_CANCELLED. Errors: RC_INVALID media of another kind or of more rows than fit prepared
 * for, those of the backend. */
enum rc mdl_g4_vision_pass(struct mdl_g4_vision *v, struct be_ctx *be,
                           const struct mdl_media *media, float *soft, bool (*stop)(void *user),
                           void *user, struct rc_err *err);
enum rc mdl_g4_audio_pass(struct mdl_g4_audio *a, struct be_ctx *be, const struct mdl_media *media,
                          float *soft, bool (*stop)(void *user), void *user, struct rc_err *err);

/* Golden tests look at what stands behind each module of the reference: "patch_embedder",
 * "subsampled", "layer0" ..., "pooled_scaled", "out", "projected". */
struct mdl_g4_trace {
    void (*fn)(void *user, const char *name, const struct be_tensor *x, uint32_t n_rows);
    void *user;
};
void mdl_g4_vision_trace(struct mdl_g4_vision *v, const struct mdl_g4_trace *t);
void mdl_g4_audio_trace(struct mdl_g4_audio *a, const struct mdl_g4_trace *t);

/* be: the context of plan, NULL when it was only probed. Weights and tensors are the plan's. */
void mdl_g4_vision_free(struct mdl_g4_vision **v, struct be_ctx *be);
void mdl_g4_audio_free(struct mdl_g4_audio **a, struct be_ctx *be);

#endif
