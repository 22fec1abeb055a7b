#!/usr/bin/env python3
"""Makes the files of this folder: pictures and sounds in every coding that worker/media takes, and what Pillow,
soundfile and soxr make of them (expect.txt: name, width, height, FNV-1a 64 of the RGB bytes; NAME.f32: samples).

    pip install pillow numpy soundfile soxr && tests/worker/media/make_media.py

Made with Pillow 13.0 (libjpeg-turbo 3.2, libwebp 1.6), soundfile 0.14, soxr 1.1. Files are committed: tests need none of it.
"""
import io
import os
import struct
import zlib

import numpy as np
from PIL import Image

HERE = os.path.dirname(os.path.abspath(__file__))
W, H = 37, 23
expect = []


def fnv(b):
    h = 0xcbf29ce484222325
    for x in b:
        h = ((h ^ x) * 0x100000001b3) & 0xffffffffffffffff
    return h


def put(name, data):
    with open(os.path.join(HERE, name), "wb") as f:
        f.write(data)


def picture(name, data):
    im = Image.open(io.BytesIO(data))
    rgb = im.convert("RGB")
    expect.append(f"{name} {rgb.width} {rgb.height} {fnv(rgb.tobytes()):016x}")
    put(name, data)


def saved(im, fmt, **kw):
    b = io.BytesIO()
    im.save(b, fmt, **kw)
    return b.getvalue()


def chunk(t, d):
    return struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d))


def pack(samples, bits):
    """Rows of samples [h, n] to bytes, most significant bits first."""
    out = []
    for row in samples:
        if bits == 16:
            out.append(b"".join(struct.pack(">H", int(v)) for v in row))
        elif bits == 8:
            out.append(bytes(int(v) for v in row))
        else:
            acc, n, line = 0, 0, bytearray()
            for v in row:
                acc, n = acc << bits | int(v), n + bits
                if n == 8:
                    line.append(acc)
                    acc, n = 0, 0
            if n:
                line.append(acc << (8 - n))
            out.append(bytes(line))
    return b"".join(b"\0" + r for r in out)


def png(samples, bits, color, n_ch=1, extra=b"", adam7=False):
    h, w = samples.shape[0], samples.shape[1] // n_ch
    if adam7:
        raw = b""
        px = samples.reshape(h, w, n_ch)
        for x0, y0, dx, dy in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
                               (0, 1, 1, 2)):
            part = px[y0::dy, x0::dx]
            if part.size:
                raw += pack(part.reshape(part.shape[0], -1), bits)
    else:
        raw = pack(samples, bits)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, bits, color, 0, 0, int(adam7))) + extra +
            chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b""))


def pictures():
    rng = np.random.default_rng(7)
    y, x = np.mgrid[0:H, 0:W]
    base = np.stack([x * 255 // W, y * 255 // H, (x + y) * 255 // (W + H)], -1).astype(np.uint8)
    base[4:12, 5:20] = rng.integers(0, 256, (8, 15, 3))
    alpha = ((x * 7 + y * 3) % 256).astype(np.uint8)
    rgb, rgba = Image.fromarray(base), Image.fromarray(np.dstack([base, alpha]))

    def ints(bits, n_ch):
        return rng.integers(0, 1 << bits, (H, W * n_ch))

    for bits in (1, 2, 4, 8, 16):
        picture(f"gray{bits}.png", png(ints(bits, 1), bits, 0))
    pal = chunk(b"PLTE", bytes(rng.integers(0, 256, 48, dtype=np.uint8)))
    picture("pal1.png", png(ints(1, 1), 1, 3, extra=pal))
    picture("pal2.png", png(ints(2, 1), 2, 3, extra=pal))
    picture("pal4_trns.png", png(ints(4, 1), 4, 3, extra=pal + chunk(b"tRNS", bytes([0, 128, 255]))))
    picture("pal8_short.png", png(ints(8, 1), 8, 3, extra=pal))
    picture("gray8_trns.png", png(ints(8, 1), 8, 0, extra=chunk(b"tRNS", b"\0\7")))
    picture("gray8_gamma.png", png(ints(8, 1), 8, 0, extra=chunk(b"gAMA", struct.pack(">I", 100000))))
    picture("rgb8_trns.png", png(ints(8, 3), 8, 2, 3, extra=chunk(b"tRNS", b"\0\1\0\2\0\3")))
    for bits in (8, 16):
        picture(f"rgb{bits}.png", png(ints(bits, 3), bits, 2, 3))
        picture(f"la{bits}.png", png(ints(bits, 2), bits, 4, 2))
        picture(f"rgba{bits}.png", png(ints(bits, 4), bits, 6, 4))
    picture("adam7.png", png(base.reshape(H, -1), 8, 2, 3, adam7=True))
    picture("adam7_pal.png", png(ints(4, 1), 4, 3, extra=pal, adam7=True))
    picture("pixel.png", png(np.array([[1, 2, 3]]), 8, 2, 3))

    for name, kw in (("444", {"subsampling": 0}), ("422", {"subsampling": 1}), ("420", {"subsampling": 2}),
                     ("progressive", {"progressive": True}), ("rgb", {"keep_rgb": True}), ("low", {"quality": 5})):
        picture(f"{name}.jpg", saved(rgb, "JPEG", **({"quality": 90} | kw)))
    picture("gray.jpg", saved(rgb.convert("L"), "JPEG"))
    picture("cmyk.jpg", saved(rgb.convert("CMYK"), "JPEG", quality=95))
    exif = Image.Exif()
    exif[0x0112] = 6
    picture("rotated.jpg", saved(rgb, "JPEG", exif=exif))
    p = saved(rgb, "JPEG", progressive=True)
    a = p.index(b"\xff\xda")
    b = a + 2
    while not (p[b] == 0xff and p[b + 1] not in (0, 0xff) and not 0xd0 <= p[b + 1] <= 0xd7):
        b += 1
    put("scans.jpg", p[:a] + p[a:b] * 40 + p[b:])

    picture("lossless.webp", saved(rgb, "WEBP", lossless=True))
    picture("lossless_alpha.webp", saved(rgba, "WEBP", lossless=True, exact=True))
    picture("lossy.webp", saved(rgb, "WEBP", quality=60))
    picture("lossy_alpha.webp", saved(rgba, "WEBP", quality=60))
    other = Image.fromarray(255 - base)
    picture("moving.webp", saved(rgb, "WEBP", save_all=True, append_images=[other], lossless=True))

    picture("plain.gif", saved(rgb.quantize(64), "GIF", interlace=0))
    picture("interlaced.gif", saved(rgb.quantize(64), "GIF", interlace=1))
    picture("moving.gif", saved(rgb.quantize(64), "GIF", save_all=True, append_images=[other.quantize(64)]))
    g = saved(rgb.quantize(16), "GIF", interlace=0)
    at = g.index(b",", 13 + 3 * (2 << (g[10] & 7)))
    n_table = 3 * (2 << (g[10] & 7))
    # the frame stands at 5, 3 of a larger screen, then leaves a smaller one, then is transparent, then has no palette
    moved = struct.pack("<HH", 5, 3) + g[at + 5:]
    picture("inset.gif", g[:6] + struct.pack("<HH", 50, 40) + g[10:at + 1] + moved)
    picture("outside.gif", g[:6] + struct.pack("<HH", 20, 10) + g[10:at + 1] + moved)
    picture("transparent.gif", b"GIF89a" + struct.pack("<HH", 50, 40) + g[10:13 + n_table] +
            b"\x21\xf9\x04\x01\0\0\x03\0," + moved)
    picture("bare.gif", g[:10] + bytes([g[10] & 0x7f]) + g[11:13] + g[at:])


def sounds():
    import soundfile
    import soxr

    rng = np.random.default_rng(11)

    def made(name, rate, n_ch, fmt, sub, seconds=0.06):
        n = int(rate * seconds)
        t = np.arange(n) / rate
        pcm = np.stack([0.4 * np.sin(2 * np.pi * (300 + 170 * c) * t) + 0.05 * rng.standard_normal(n)
                        for c in range(n_ch)], -1)
        path = os.path.join(HERE, name)
        soundfile.write(path, pcm, rate, subtype=sub, format=fmt)
        x, r = soundfile.read(path, dtype="float32", always_2d=True)
        mono = x.sum(axis=1, dtype=np.float32) / np.float32(x.shape[1])
        y = mono if r == 16000 else soxr.resample(mono, r, 16000, quality="HQ")
        put(name + ".f32", y.astype("<f4").tobytes())

    made("s16.wav", 16000, 1, "WAV", "PCM_16")
    made("u8.wav", 8000, 2, "WAV", "PCM_U8")
    made("s24.wav", 48000, 1, "WAV", "PCM_24")
    made("s32x.wav", 32000, 3, "WAVEX", "PCM_32")
    made("f32.wav", 44100, 2, "WAV", "FLOAT")
    made("f64.wav", 11025, 1, "WAV", "DOUBLE")
    made("ulaw.wav", 8000, 1, "WAV", "ULAW")
    made("adpcm.wav", 16000, 1, "WAV", "IMA_ADPCM")
    made("stereo.flac", 44100, 2, "FLAC", "PCM_16")
    made("vorbis.ogg", 22050, 1, "OGG", "VORBIS", 0.2)
    made("opus.ogg", 48000, 1, "OGG", "OPUS", 0.2)
    made("stereo.mp3", 44100, 2, "MP3", "MPEG_LAYER_III", 0.2)
    os.remove(os.path.join(HERE, "adpcm.wav.f32"))
    # 31 s of silence: as it is, and with a header that does not know the length
    path = os.path.join(HERE, "long.flac")
    soundfile.write(path, np.zeros(31 * 16000), 16000, format="FLAC", subtype="PCM_16")
    f = bytearray(open(path, "rb").read())
    f[21] &= 0xf0
    f[22:26] = bytes(4)
    put("unknown_length.flac", bytes(f))


pictures()
sounds()
put("expect.txt", ("\n".join(expect) + "\n").encode())
