/* mdl_gliner2.h - private to models/gliner2: numbers, weights and memory of an extractor.
 * Facts: docs/models/gliner2.md. */
#ifndef INFERD_MDL_GLINER2_H
#define INFERD_MDL_GLINER2_H

#include "mdl_deberta.h"
#include "mdl_impl.h"

#define G2_MAX_WIDTH 64
#define G2_EXPERTS 4
#define G2_LAYERS 2  /* of the small transformer of count_lstm_v2 */
#define G2_SMALL 128 /* its width */
#define G2_HEADS 4
#define G2_ROWS MDL_EXTRACT_WORDS /* words, or fields of a step, in one product of a head */
#define G2_VECS 64u               /* fields whose spans are scored at once */

enum g2_pool { G2_FIRST, G2_MEAN, G2_MAX };
enum g2_count { G2_LSTM, G2_LSTM_V2, G2_MOE };

/* Linear, ReLU, Linear. */
struct g2_mlp {
    struct be_weight *w0, *b0, *w1, *b1;
};
struct g2_layer {
    struct be_weight *in_w[3], *in_b[3], *o_w, *o_b; /* in: of queries, keys, values */
    struct be_weight *ln1_w, *ln1_b, *up_w, *up_b, *down_w, *down_b, *ln2_w, *ln2_b;
};

struct g2 {
    struct mdl_deberta *enc;
    uint32_t d, width;
    enum g2_pool pool;
    enum g2_count counting;
    uint32_t rows; /* of a head's product: at most G2_ROWS, and of a pass */

    struct g2_mlp start, end, count, cls;
    /* out_project: of the start's half and the end's; turned: fields to where sums are */
    struct be_weight *out_s, *out_e, *out_b, *out_turned;
    /* count embedding */
    struct be_weight *pos, *ih_w, *ih_b, *hh_w, *hh_b;
    struct be_weight *mix_a, *mix_b; /* first layer of what follows, of its input's two parts */
    struct g2_mlp mix;               /* w0 absent: mix_a, mix_b */
    struct be_weight *in_w, *in_b, *last_w, *last_b;
    struct g2_layer layer[G2_LAYERS];
    struct g2_mlp router;
    struct be_weight *e_w1[G2_EXPERTS], *e_b1[G2_EXPERTS], *e_w2[G2_EXPERTS], *e_b2[G2_EXPERTS];

    /* [rows, .]; x, y, z: d, hid: 4 d, gates: 3 d, mid: 2 d. a, b: what spans are summed of,
     * vec: what fields make of them */
    struct be_tensor *x, *y, *z, *hid, *a, *b, *vec, *gates, *mid, *counts, *one;
    struct be_tensor *sx, *sq, *sk, *sv, *sa, *sf; /* of the small transformer */
    struct be_tensor *router_out;

    /* host */
    int32_t *ids;    /* [rows of a pass] */
    int32_t *gather; /* [rows] */
    float *marks;    /* [rows of a pass, d]: states of a pass's marks */
    float *step;     /* [20, 3 d]: what a step's position gives the gates */
    bool stepped;
    float *out_bias;        /* [d] */
    float *count_logits;    /* [rows of a pass, 20]: of the prompt whose first mark it is */
    uint32_t *n_inst;       /* [rows of a pass]: the same */
    float *cls_logits;      /* [rows of a pass], by mark */
    float *state;           /* [rows, d] */
    float *buf, *buf2;      /* [rows, 4 d + 20], [rows, d] */
    float *scores;          /* [G2_VECS, rows, width] */
    float *scratch;         /* of be_spans */
    uint32_t *seg;          /* [rows + 1] */
    struct g2_query *query; /* [rows] */
};

/* A field of an instance, in a step. */
struct g2_query {
    uint32_t seq, prompt, field; /* seq: of the pass */
    uint32_t mark;               /* of the pass */
};

enum rc g2_config(struct mdl *m, const struct mdl_src *src, struct rc_err *err);
enum rc g2_plan(struct mdl *m, struct rc_err *err);
enum rc g2_fit(struct mdl *m, struct rc_err *err);
void g2_free(struct mdl *m);
enum rc g2_extract(struct mdl *m, uint32_t first, uint32_t n, const struct mdl_extract_in *in,
                   const struct mdl_extract_out *out, struct rc_err *err);

/* max(x, 0) of n rows, in place. */
enum rc g2_relu(struct mdl *m, struct be_tensor *x, uint32_t n, uint32_t n_cols,
                struct rc_err *err);

/* mdl_gliner2_count.c. step: n fields' states, at `state`, one step on (state [n, d], in place);
 * project: the states to vectors in *out [n, d]; seg: prompts among them, [n_seg + 1], from 0;
 * fields [n, d] as the marks have them. Both on the host. */
enum rc g2_count_step(struct mdl *m, uint32_t t, uint32_t n, float *state, struct rc_err *err);
enum rc g2_count_project(struct mdl *m, uint32_t n, const float *state, const float *fields,
                         const uint32_t *seg, uint32_t n_seg, struct be_tensor **out,
                         struct rc_err *err);

#endif
