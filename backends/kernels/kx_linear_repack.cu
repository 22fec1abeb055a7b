
/* kx_linear_repack.cu - the file's blocks to planes (be_klayout.c), one sub-block of 32 columns at a
 * time. Source bytes may have any alignment. Offsets of fields: engine.md 2.3. The words KXL_U8,
 * KXL_U32 (elements of device memory) and KXL_ARGS are those of the language. */
#define KXL_BLOCK_BYTES (KXL_SUPER ? (KXL_BITS == 8 ? 210u : 144u + 8u * KXL_BITS) : KXL_CODE + KXL_BITS + (KXL_MIN ? 4u : 2u))

#if KXL_SUPER
/* Byte of sub-block j that holds the low bits of column v, and v's low bits. */
KX_DEV kx_u kxl_low(const KXL_U8 *b, kx_u j, kx_u v)
{
#if KXL_BITS == 8
    const kx_u x = b[64u * (j >> 2) + 32u * (j & 1u) + v];

    return (j & 2u ? x >> 4 : x) & 15u;
#else
    const kx_u x = b[16u + 8u * KXL_BITS + 32u * (j >> 1) + v];

    return (j & 1u ? x >> 4 : x) & 15u;
#endif
}
#endif

/* Zeros behind the used bytes of a plane's row. */
KX_DEV void kxl_pad(KXL_U8 *row, kx_u used)
{
    for (kx_u i = used; i < KXL_UP16(used); i++)
        row[i] = 0;
}

/* Sub-block i of row r. */
KX_DEV void kxl_repack(KXL_ARGS(kx_repack) a, kx_u i, kx_u r)
{
    const kx_u nb = KXL_K(KXL_A(k)) / 32u;
    const kx_p at = (kx_p)KXL_A(row0) + r;
#if KXL_SUPER
    const kx_u ns = nb / 8u, j = i & 7u;
    const KXL_U8 *b = (const KXL_U8 *)KXL_A(src) + ((kx_p)r * ns + (i >> 3)) * KXL_BLOCK_BYTES;
    KXL_U8 *q = (KXL_U8 *)KXL_A(dst)[0] + (at * nb + i) * 16u;
    KXL_U8 *d = (KXL_U8 *)KXL_A(dst)[1] + at * KXL_UP16(ns * (KXL_MIN ? 4u : 2u));
    KXL_U8 *sub = (KXL_U8 *)KXL_A(dst)[2] + (at * ns + (i >> 3)) * 16u;

    if (i >= nb)
        return;
    for (kx_u v = 0u; v < 16u; v++)
        q[v] = KXL_BYTE(kxl_low(b, j, v) | kxl_low(b, j, v + 16u) << 4);
#if KXL_BITS == 8
    for (kx_u h = 0u; h < 2u; h++) {
        kx_u word = 0u;

        for (kx_u v = 0u; v < 16u; v++)
            word |= ((kx_u)b[128u + 32u * (j >> 2) + 16u * h + v] >> 2u * (j & 3u) & 3u) << (8u * (v & 3u) + 2u * (v >> 2));
        ((KXL_U32 *)KXL_A(dst)[3])[(at * nb + i) * 2u + h] = word;
    }
    sub[2u * j] = b[192u + 2u * j];
    sub[2u * j + 1u] = b[193u + 2u * j];
    if (j < 2u)
        d[2u * (i >> 3) + j] = b[208u + j];
#else
    {
        const KXL_U8 *s = b + 4;

        sub[2u * j] = KXL_BYTE(j < 4u ? s[j] & 63u : (s[j + 4u] & 15u) | (kx_u)(s[j - 4u] >> 6) << 4);
        sub[2u * j + 1u] = KXL_BYTE(j < 4u ? s[j + 4u] & 63u : (kx_u)(s[j + 4u] >> 4) | (kx_u)(s[j] >> 6) << 4);
    }
    if (j < 4u)
        d[4u * (i >> 3) + j] = b[j];
#if KXL_BITS == 4
    {
        kx_u word = 0u;

        for (kx_u v = 0u; v < 32u; v++)
            word |= ((kx_u)b[16u + v] >> j & 1u) << (8u * (v & 3u) + (v >> 2));
        ((KXL_U32 *)((KXL_U8 *)KXL_A(dst)[3] + at * (nb * 4u)))[i] = word;
    }
#endif
#endif
    if (i == 0u)
        kxl_pad(d, ns * (KXL_MIN ? 4u : 2u));
#else
    const KXL_U8 *b = (const KXL_U8 *)KXL_A(src) + ((kx_p)r * nb + i) * KXL_BLOCK_BYTES;
    const kx_u nd = KXL_MIN ? 4u : 2u;
    KXL_U8 *q = (KXL_U8 *)KXL_A(dst)[0] + (at * nb + i) * KXL_CODE;
    KXL_U8 *d = (KXL_U8 *)KXL_A(dst)[1] + at * KXL_UP16(nb * nd);

    if (i >= nb)
        return;
    for (kx_u v = 0u; v < KXL_CODE; v++)
        q[v] = b[nd + KXL_BITS + v];
    for (kx_u v = 0u; v < nd; v++)
        d[i * nd + v] = b[v];
    if (i == 0u)
        kxl_pad(d, nb * nd);
#if KXL_BITS
    {
        KXL_U8 *h = (KXL_U8 *)KXL_A(dst)[2] + at * KXL_UP16(nb * 4u);
        kx_u word = 0u;

        for (kx_u v = 0u; v < 32u; v++)
            word |= ((kx_u)b[nd + (v >> 3)] >> (v & 7u) & 1u) << (8u * (v & 3u) + (v >> 2));
        ((KXL_U32 *)h)[i] = word;
        if (i == 0u)
            kxl_pad(h, nb * 4u);
    }
#endif
#endif
}
