/* kx_rows.metal - the row kernels and the embedding kernels for Metal: right and plain, not
 * yet fast. Every thread works alone; sums are taken in the order of be_krows.h, so the bits are those
 * of every other device (but for rotation, whose angles Metal takes without f64, and the draws of
 * kx_sample, whose running sums are f32 here).
 *
 * Threads (x, y): quant block, row - norms row - rope head, row - rope_kv head of q then of k, row
 * - kv_write head, row - gather scale column, row - softcap convert mul element - pool column,
 * sequence - argmax_part part, row - argmax row - sample_part piece, row - sample row - embed
 * column, row. */

KX_DEV float kxr_inv_rms(float sum, kx_u k, float eps)
{
    return kx_div(1.0f, kx_sqrt(kx_div(sum, float(k)) + eps));
}

/* Columns c .. of a row, a block of enc, to its place. */
KX_DEV void kxr_quant_block(const thread float *v, kx_u enc, kx_p xq, kx_p xd, kx_p xs, kx_u row, kx_u c, kx_u k)
{
    kx_u n = enc == KX_ENC_Q8_0 ? 32u : 256u;
    int q[256], s[8];
    float d;

    if (enc == KX_ENC_Q8_0)
        d = kxr_q8_0(v, q, s);
    else
        d = kxr_q8_k(v, q, s);
    for (kx_u i = 0; i < n; i++)
        KX_AT(char, xq)[ulong(row) * k + c + i] = char(q[i]);
    for (kx_u i = 0; i < n / 32u; i++)
        KX_AT(int, xs)[ulong(row) * (k / 32u) + c / 32u + i] = s[i];
    KX_AT(float, xd)[ulong(row) * (k / n) + c / n] = d;
}
KX_DEV void kxr_quant(constant kx_quant &a, kx_u x, kx_u y)
{
    kx_u n = a.enc == KX_ENC_Q8_0 ? 32u : 256u;
    float v[256];

    if (y >= a.n || x >= a.k / n)
        return;
    for (kx_u i = 0; i < n; i++)
        v[i] = kxr_get(a.x, a.x_t, ulong(y) * a.k + x * n + i);
    kxr_quant_block(v, a.enc, a.xq, a.xd, a.xs, y, x * n, a.k);
}

/* ---- norms. z: column c of the row, of a layer norm with what is added before. */
KX_DEV float kxr_z(constant kx_norm &a, ulong at, bool layer)
{
    float v = kxr_get(a.x, a.x_t, at);

    return layer && a.add ? v + kxr_get(a.add, a.add_t, at) : v;
}
/* what: 0 the sum, 1 the squares, 2 the squares of the distance from mean */
KX_DEV float kxr_row_sum(constant kx_norm &a, kx_u row, bool layer, int what, float mean)
{
    kx_u k = a.k, blocks = (k + 255u) / 256u, warps = blocks > 32u ? 32u : blocks;
    float part[32], lane[32];

    for (kx_u w = 0; w < 32u; w++) {
        part[w] = 0.0f;
        for (kx_u l = 0; w < warps && l < 32u; l++) {
            float s = 0.0f;

            for (kx_u b = w; b < blocks; b += warps)
                for (kx_u c = b * 256u + l * 8u; c < b * 256u + l * 8u + 8u && c < k; c++) {
                    float v = kxr_z(a, ulong(row) * k + c, layer);

                    v = what == 2 ? v - mean : v;
                    s = what == 0 ? s + v : kx_fma(v, v, s);
                }
            lane[l] = s;
        }
        if (w < warps)
            part[w] = kxr_fold(lane);
    }
    return kxr_fold(part);
}
/* The squares of a row of values, in the order of kxr_row_sum. */
KX_DEV float kxr_row_sq(kx_p x, kx_u t, kx_u row, kx_u k)
{
    kx_u blocks = (k + 255u) / 256u, warps = blocks > 32u ? 32u : blocks;
    float part[32], lane[32];

    for (kx_u w = 0; w < 32u; w++) {
        part[w] = 0.0f;
        for (kx_u l = 0; w < warps && l < 32u; l++) {
            float s = 0.0f;

            for (kx_u b = w; b < blocks; b += warps)
                for (kx_u c = b * 256u + l * 8u; c < b * 256u + l * 8u + 8u && c < k; c++) {
                    float v = kxr_get(x, t, ulong(row) * k + c);

                    s = kx_fma(v, v, s);
                }
            lane[l] = s;
        }
        if (w < warps)
            part[w] = kxr_fold(lane);
    }
    return kxr_fold(part);
}
KX_DEV void kxr_rms_norm(constant kx_norm &a, kx_u row, kx_u y0)
{
    kx_u n = a.enc == KX_ENC_Q8_0 ? 32u : 256u;
    float f, v[256];

    if (row >= a.n || y0 > 0u)
        return;
    f = kxr_inv_rms(kxr_row_sum(a, row, false, 1, 0.0f), a.k, a.eps);
    for (kx_u c = 0; c < a.k; c++) {
        ulong at = ulong(row) * a.k + c;
        float y = kxr_get(a.x, a.x_t, at) * f;

        y = y * KX_AT(const float, a.w)[c];
        y = a.add ? kxr_get(a.add, a.add_t, at) + y : y;
        y = a.scale != 0.0f ? kxr_round(y, a.out_t) * a.scale : y;
        if (a.out)
            kxr_put(a.out, a.out_t, at, y);
        v[c % n] = kxr_round(y, a.out_t);
        if (a.xq && !a.w2 && c % n == n - 1u)
            kxr_quant_block(v, a.enc, a.xq, a.xd, a.xs, row, c - (n - 1u), a.k);
    }
    if (!a.w2) /* with w2 there is an out to read again */
        return;
    f = kxr_inv_rms(kxr_row_sq(a.out, a.out_t, row, a.k), a.k, a.eps2);
    for (kx_u c = 0; c < a.k; c++) {
        ulong at = ulong(row) * a.k + c;
        float y = kxr_get(a.out, a.out_t, at) * f;

        y = y * KX_AT(const float, a.w2)[c];
        if (a.out2)
            kxr_put(a.out2, a.out2_t, at, y);
        v[c % n] = kxr_round(y, a.out2_t);
        if (a.xq && c % n == n - 1u)
            kxr_quant_block(v, a.enc, a.xq, a.xd, a.xs, row, c - (n - 1u), a.k);
    }
}
KX_DEV void kxr_layer_norm(constant kx_norm &a, kx_u row, kx_u y0)
{
    float mean, f;

    if (row >= a.n || y0 > 0u)
        return;
    mean = kx_div(kxr_row_sum(a, row, true, 0, 0.0f), float(a.k));
    f = kxr_inv_rms(kxr_row_sum(a, row, true, 2, mean), a.k, a.eps);
    for (kx_u c = 0; c < a.k; c++) {
        ulong at = ulong(row) * a.k + c;
        float y = (kxr_z(a, at, true) - mean) * f;

        y = y * KX_AT(const float, a.w)[c];
        kxr_put(a.out, a.out_t, at, y + (a.b ? KX_AT(const float, a.b)[c] : 0.0f));
    }
}

/* ---- heads */
KX_DEV void kxr_rope_head(constant kx_rope &a, kx_u row, kx_u h)
{
    kx_u half_dim = a.head_dim / 2u;
    ulong at = (ulong(row) * a.n_heads + h) * a.head_dim;
    float sum[32], f = 1.0f;

    for (kx_u l = 0; l < 32u; l++) {
        sum[l] = 0.0f;
        for (kx_u i = l; i < half_dim; i += 32u) {
            float u = kxr_get(a.x, a.x_t, at + i), v = kxr_get(a.x, a.x_t, at + half_dim + i);

            sum[l] = kx_fma(u, u, sum[l]);
            sum[l] = kx_fma(v, v, sum[l]);
        }
    }
    if (a.w)
        f = kxr_inv_rms(kxr_fold(sum), a.head_dim, a.eps);
    for (kx_u i = 0; i < half_dim; i++) {
        float u = kxr_get(a.x, a.x_t, at + i), v = kxr_get(a.x, a.x_t, at + half_dim + i), s, c, t;

        if (a.w) {
            u = u * f * KX_AT(const float, a.w)[i];
            v = v * f * KX_AT(const float, a.w)[half_dim + i];
        }
        if (a.freq) {
            kx_sincos(kx_i2f(KX_AT(const int, a.pos)[row]) * kxr_f64(a.freq, i), &s, &c);
            t = kx_fma(u, c, -(v * s));
            v = kx_fma(v, c, u * s);
            u = t;
        }
        kxr_put(a.x, a.x_t, at + i, u);
        kxr_put(a.x, a.x_t, at + half_dim + i, v);
    }
}
KX_DEV void kxr_rope(constant kx_rope &a, kx_u x, kx_u y)
{
    if (y < a.n && x < a.n_heads)
        kxr_rope_head(a, y, x);
}
/* Head h of a row of keys or values to its slot. */
KX_DEV void kxr_kv_head(constant kx_kv_write &a, kx_p from, kx_p base, kx_u row, kx_u h)
{
    kx_u hd = a.kv.head_dim, s = KX_AT(const kx_u, a.row_seq)[row];
    kx_seq q = KX_AT(const kx_seq, a.seqs)[s];
    kx_u p = q.pos0 + (row - q.row0), slot = p % a.kv.page_tokens;
    int page = KX_AT(const int, a.pages)[q.page0 + p / a.kv.page_tokens];
    kx_p to = base + ulong(kx_u(page)) * a.kv.page_stride;
    ulong at = (ulong(h) * a.kv.page_tokens + slot) * hd;
    ulong src = (ulong(row) * a.kv.n_kv_heads + h) * hd;

    if (page < 0)
        return;
    for (kx_u c = 0; a.kv.dtype != 8u && c < hd; c++)
        kxr_put(to, a.kv.dtype == 1u ? KX_F16 : KX_F32, at + c, kxr_get(from, a.x_t, src + c));
    for (kx_u b = 0; a.kv.dtype == 8u && b < hd / 32u; b++) {
        float v[32], d;
        int codes[32], sum[1];

        for (kx_u i = 0; i < 32u; i++)
            v[i] = kxr_get(from, a.x_t, src + b * 32u + i);
        d = kxr_q8_0(v, codes, sum);
        for (kx_u i = 0; i < 32u; i++)
            KX_AT(char, to)[at + b * 32u + i] = char(codes[i]);
        KX_AT(ushort, to + a.kv.scales_at)[at / 32u + b] = kx_f2h(d);
    }
}
KX_DEV void kxr_kv_write(constant kx_kv_write &a, kx_u x, kx_u y)
{
    if (y >= a.n || x >= a.kv.n_kv_heads)
        return;
    kxr_kv_head(a, a.k, a.kv.k, y, x);
    kxr_kv_head(a, a.v, a.kv.v, y, x);
}
KX_DEV void kxr_rope_kv(constant kx_rope_kv &a, kx_u x, kx_u y)
{
    if (y >= a.q.n || x >= a.q.n_heads + a.k.n_heads)
        return;
    if (x < a.q.n_heads) {
        kxr_rope_head(a.q, y, x);
        return;
    }
    kxr_rope_head(a.k, y, x - a.q.n_heads);
    if (a.v.x)
        kxr_rope_head(a.v, y, x - a.q.n_heads);
    kxr_kv_write(a.w, x - a.q.n_heads, y);
}

/* ---- elements */
KX_DEV void kxr_gather(constant kx_gather &a, kx_u x, kx_u y)
{
    if (y < a.n && x < a.k)
        kxr_put(a.out, a.t, ulong(y) * a.k + x, kxr_get(a.x, a.t, ulong(kx_u(KX_AT(const int, a.rows)[y])) * a.k + x));
}
KX_DEV void kxr_softcap(constant kx_softcap &a, kx_u x, kx_u y)
{
    if (y == 0u && x < ulong(a.n) * a.k)
        kxr_put(a.x, a.t, x, a.cap * kx_tanh(kx_div(kxr_get(a.x, a.t, x), a.cap)));
}
KX_DEV void kxr_scale(constant kx_scale &a, kx_u x, kx_u y)
{
    float f;

    if (y >= a.n || x >= a.k)
        return;
    f = a.scale * (a.y == 0u ? 1.0f : kxr_get(a.y, a.y_t, ulong(y) * a.y_k + a.y_col + x));
    kxr_put(a.x, a.x_t, ulong(y) * a.k + x, kxr_get(a.x, a.x_t, ulong(y) * a.k + x) * f);
}
KX_DEV void kxr_convert(constant kx_convert &a, kx_u x, kx_u y)
{
    if (y == 0u && x < a.n)
        kxr_put(a.dst, a.to_t, x, kxr_get(a.src, a.from_t, x));
}
KX_DEV void kxr_mul(constant kx_mul &a, kx_u x, kx_u y)
{
    if (y == 0u && x < a.n)
        kxr_put(a.out, a.out_t, x, kxr_get(a.x, a.x_t, x) * kxr_get(a.y, a.y_t, x));
}
KX_DEV void kxr_pool(constant kx_pool &a, kx_u x, kx_u y)
{
    kx_u r0, r1;
    float s[8], first, v;

    if (y >= a.n_seqs || x >= a.k)
        return;
    r0 = KX_AT(const kx_u, a.off)[y];
    r1 = KX_AT(const kx_u, a.off)[y + 1u];
    first = kxr_get(a.x, a.x_t, ulong(r0) * a.k + x);
    for (kx_u i = 0; i < 8u; i++)
        s[i] = a.kind == 1u ? -kx_i2f_bits(0x7f800000) : 0.0f;
    for (kx_u r = r0; r < r1; r++) {
        kx_u i = (r - r0) % 8u;

        v = kxr_get(a.x, a.x_t, ulong(r) * a.k + x);
        if (a.kind == 1u)
            s[i] = v > s[i] ? v : s[i];
        else
            s[i] = kx_fma(a.kind == 4u ? float(r - r0 + 1u) : 1.0f, v, s[i]);
    }
    if (a.kind == 0u)
        v = first;
    else if (a.kind == 5u)
        v = kxr_get(a.x, a.x_t, ulong(r1 - 1u) * a.k + x);
    else if (a.kind == 1u) {
        v = s[0];
        for (kx_u i = 1u; i < 8u; i++)
            v = s[i] > v ? s[i] : v;
        v = first == first ? v : first;
    } else {
        ulong n = r1 - r0;

        v = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
        v = kx_div(v, a.kind == 2u ? float(n) : a.kind == 3u ? kx_sqrt(float(n)) : float(n * (n + 1u) / 2u));
    }
    kxr_put(a.out, a.out_t, ulong(y) * a.k + x, v);
}

/* ---- arg-max, sampling */
KX_DEV void kxr_argmax_part(constant kx_argmax &a, kx_u x, kx_u y)
{
    kx_u span, lo;
    kx_best b;

    if (y >= a.n || x >= a.parts)
        return;
    span = ((a.k + a.parts - 1u) / a.parts + 7u) / 8u * 8u;
    lo = x * span;
    b.v = -kx_i2f_bits(0x7f800000);
    b.i = 0x7fffffff;
    for (kx_u c = lo; c < lo + span && c < a.k; c++) {
        float v = kxr_get(a.x, a.x_t, ulong(y) * a.k + c);

        if (v > b.v || (v == b.v && b.i == 0x7fffffff)) {
            b.v = v;
            b.i = int(c);
        }
    }
    KX_AT(kx_best, a.part)[ulong(y) * a.parts + x] = b;
}
KX_DEV void kxr_argmax(constant kx_argmax &a, kx_u x, kx_u y)
{
    kx_best b;

    if (x >= a.n || y > 0u)
        return;
    b.v = -kx_i2f_bits(0x7f800000);
    b.i = 0x7fffffff;
    for (kx_u p = 0; p < a.parts; p++) {
        kx_best o = KX_AT(const kx_best, a.part)[ulong(x) * a.parts + p];

        if (o.v > b.v || (o.v == b.v && o.i < b.i))
            b = o;
    }
    KX_AT(int, a.out)[x] = b.i == 0x7fffffff ? 0 : b.i;
}
KX_DEV float kxr_weight(float v, float most, float it)
{
    return v == most ? 1.0f : kx_exp((v - most) * it);
}
/* The piece's largest and whether all is finite; no lists: top_k and top_p are the host's here. */
KX_DEV void kxr_sample_part(constant kx_sample &a, kx_u x, kx_u y)
{
    kx_u lo = x * KX_SAMPLE_SPAN(a.k);
    kx_piece h;

    if (y >= a.n || a.k > KX_SAMPLE_COLS || x >= KX_SAMPLE_PIECES(a.k))
        return;
    h.max = -kx_i2f_bits(0x7f800000);
    h.arg = 0x7fffffff;
    h.sum = 0.0f;
    h.bad = 0u;
    for (kx_u c = lo; c < lo + KX_SAMPLE_SPAN(a.k) && c < a.k; c++) {
        float v = kxr_get(a.x, a.x_t, ulong(y) * a.k + c);

        h.bad = kx_abs(v) <= KXR_FLT_MAX ? h.bad : 1u;
        if (v > h.max) {
            h.max = v;
            h.arg = int(c);
        }
    }
    KX_AT(kx_piece, a.scratch + y * a.scratch_row)[x] = h;
}
KX_DEV void kxr_sample(constant kx_sample &a, kx_u x, kx_u y)
{
    kx_sample_row r;
    float most = -kx_i2f_bits(0x7f800000), sum = 0.0f, u, run = 0.0f;
    int id = -1;
    bool ask = a.k > KX_SAMPLE_COLS;

    if (x >= a.n || y > 0u)
        return;
    r = KX_AT(const kx_sample_row, a.rows)[x];
    for (kx_u p = 0; !ask && p < KX_SAMPLE_PIECES(a.k); p++) {
        kx_piece h = KX_AT(const kx_piece, a.scratch + x * a.scratch_row)[p];

        ask = ask || h.bad != 0u;
        if (h.max > most) {
            most = h.max;
            id = h.arg;
        }
    }
    if (!ask && r.inv_temperature != 0.0f && r.top_k != 1u) {
        ask = r.top_p < 1.0f || (r.top_k > 0u && r.top_k < a.k);
        for (kx_u c = 0; !ask && c < a.k; c++) {
            float w = kxr_weight(kxr_get(a.x, a.x_t, ulong(x) * a.k + c), most, r.inv_temperature);

            sum = sum + (w < r.min_p ? 0.0f : w);
        }
        u = r.u * sum;
        for (kx_u c = 0; !ask && c < a.k && !(u < run); c++) {
            float w = kxr_weight(kxr_get(a.x, a.x_t, ulong(x) * a.k + c), most, r.inv_temperature);

            w = w < r.min_p ? 0.0f : w;
            run = run + w;
            id = w > 0.0f ? int(c) : id;
        }
    }
    KX_AT(int, a.out)[x] = ask ? -1 : id;
}

/* ---- embedding: the planes of be_klayout.c */
KX_DEV const device uchar *kxr_plane(kx_p w, kx_u id, kx_u row_bytes)
{
    return KX_AT(const uchar, w) + ulong(id) * ((row_bytes + 15u) / 16u * 16u);
}
KX_DEV float kxr_half(const device uchar *p, kx_u i)
{
    return kx_h2f(ushort(kx_u(p[2u * i]) | kx_u(p[2u * i + 1u]) << 8));
}
KX_DEV kx_u kxr_word(const device uchar *p, kx_u i)
{
    return kx_u(p[4u * i]) | kx_u(p[4u * i + 1u]) << 8 | kx_u(p[4u * i + 2u]) << 16 | kx_u(p[4u * i + 3u]) << 24;
}
KX_DEV kx_u kxr_fifth(kx_p w, kx_u id, kx_u c, kx_u k)
{
    return (kxr_word(kxr_plane(w, id, k / 8u), c / 32u) >> (8u * (c % 4u) + c % 32u / 4u) & 1u) * 16u;
}
/* Column c of row id; fmt: enum be_dtype. */
KX_DEV float kxr_value(constant kx_embed &a, kx_u id, kx_u c, kx_u fmt)
{
    kx_u k = a.k, q, b;
    float d, m;

    if (fmt == 0u)
        return kx_i2f_bits(int(kxr_word(kxr_plane(a.w[0], id, 4u * k), c)));
    if (fmt == 1u)
        return kxr_half(kxr_plane(a.w[0], id, 2u * k), c);
    if (fmt == 30u) {
        const device uchar *p = kxr_plane(a.w[0], id, 2u * k) + 2u * c;

        return kx_bf2f(ushort(kx_u(p[0]) | kx_u(p[1]) << 8));
    }
    if (fmt == 8u)
        return kxr_half(kxr_plane(a.w[1], id, k / 16u), c / 32u) * float(int(char(kxr_plane(a.w[0], id, k)[c])));
    b = kxr_plane(a.w[0], id, k / 2u)[c / 32u * 16u + c % 16u];
    q = c % 32u < 16u ? b & 15u : b >> 4;
    if (fmt == 2u)
        return kxr_half(kxr_plane(a.w[1], id, k / 16u), c / 32u) * float(int(q) - 8);
    if (fmt == 6u)
        return kxr_half(kxr_plane(a.w[1], id, k / 16u), c / 32u) * float(int(q + kxr_fifth(a.w[2], id, c, k)) - 16);
    if (fmt == 3u || fmt == 7u) {
        d = kxr_half(kxr_plane(a.w[1], id, k / 8u), c / 32u * 2u);
        m = kxr_half(kxr_plane(a.w[1], id, k / 8u), c / 32u * 2u + 1u);
        return d * float(fmt == 7u ? q + kxr_fifth(a.w[2], id, c, k) : q) + m;
    }
    if (fmt == 14u) {
        b = kxr_word(kxr_plane(a.w[3], id, k / 4u), c / 16u) >> (8u * (c % 4u) + c % 16u / 4u * 2u) & 3u;
        d = kxr_half(kxr_plane(a.w[1], id, k / 128u), c / 256u) * float(int(char(kxr_plane(a.w[2], id, k / 16u)[c / 16u])));
        return d * float(int(q + b * 16u) - 32);
    }
    d = kxr_half(kxr_plane(a.w[1], id, k / 64u), c / 256u * 2u) * float(kxr_plane(a.w[2], id, k / 16u)[c / 32u * 2u]);
    m = kxr_half(kxr_plane(a.w[1], id, k / 64u), c / 256u * 2u + 1u) * float(kxr_plane(a.w[2], id, k / 16u)[c / 32u * 2u + 1u]);
    return d * float(fmt == 13u ? q + kxr_fifth(a.w[3], id, c, k) : q) - m;
}
KX_DEV void kxr_embed(constant kx_embed &a, kx_u x, kx_u y, kx_u fmt)
{
    ulong at = ulong(y) * a.k + x;
    float v;

    if (y >= a.n || x >= a.k)
        return;
    v = a.scale * kxr_value(a, kx_u(KX_AT(const int, a.ids)[y]), x, fmt);
    kxr_put(a.out, a.out_t, at, a.accumulate ? kxr_get(a.out, a.out_t, at) + v : v);
}
