"""media.py - pictures and sounds for the tests of EmbeddingGemma 2, made from numbers alone (stdlib).

The same bytes on every machine: PNG written with zlib level 0 blocks, WAV of 16 bits, 16,000 Hz, one channel.
"""
import math
import os
import struct
import zlib


def pixels(width, height, channels, seed):
    """Waves, a gradient, a block of one colour and a little noise."""
    out, state = bytearray(width * height * channels), seed * 40503 % 65536
    waves = [[[90 * math.sin(x / (31.0 + 7 * c) + c + seed) for x in range(width)],
              [math.cos(y / (47.0 - 6 * c)) for y in range(height)]] for c in range(channels)]
    at = 0
    for y in range(height):
        for x in range(width):
            block = height // 4 <= y < height // 2 and width // 3 <= x < width // 2
            for c in range(channels):
                state = (state * 25173 + 13849) % 65536
                v = 40 * c + 60 if block else 127 + waves[c][0][x] * waves[c][1][y] + 30 * x / width - 20 * y / height
                out[at] = max(0, min(255, int(v) + state % 25 - 12))
                at += 1
    return bytes(out)


def stored(data):
    """zlib stream of stored blocks: no version of zlib writes it differently."""
    out = b"\x78\x01"
    for i in range(0, len(data), 65535):
        part = data[i:i + 65535]
        out += struct.pack("<BHH", i + 65535 >= len(data), len(part), len(part) ^ 0xFFFF) + part
    return out + struct.pack(">I", zlib.adler32(data))


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, channels, data):
    row = width * channels
    lines = b"".join(b"\0" + data[y * row:(y + 1) * row] for y in range(height))
    kind = {1: 0, 3: 2, 4: 6}[channels]
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)) +
            chunk(b"IDAT", stored(lines)) + chunk(b"IEND", b""))


def samples(n, seed):
    out, state = [], seed * 40503 % 65536
    for i in range(n):
        t = i / 16000
        state = (state * 25173 + 13849) % 65536
        x = 0.35 * math.sin(2 * math.pi * (220 + 150 * t + 20 * seed) * t) + 0.02 * (state / 32768 - 1)
        x += 0.2 * math.sin(2 * math.pi * 3100 * t) if i > n // 5 else 0
        out.append(round(x * 32767 * (0.05 if n // 2 <= i < n // 2 + 700 else 1)))
    return out


def wav(values):
    data = struct.pack(f"<{len(values)}h", *values)
    return (b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16000, 32000, 2, 16) +
            b"data" + struct.pack("<I", len(data)) + data)


SETS = {  # pictures: width, height, channels; sounds: samples
    "large": ({"wide": (640, 400, 3), "tall": (230, 410, 4)}, {"second": 16000, "short": 5917, "long": 52801}),
    "small": ({"wide": (97, 61, 3), "tall": (50, 83, 4)}, {"second": 16000, "short": 5917, "long": 30345}),
}


def write(folder, which="large"):
    """The files of a set and, for readers without a decoder, NAME.raw with the pixels."""
    pictures, sounds = SETS[which]
    os.makedirs(folder, exist_ok=True)
    for i, (name, (w, h, c)) in enumerate(pictures.items()):
        data = pixels(w, h, c, i + 1)
        put(os.path.join(folder, name + ".png"), png(w, h, c, data))
        put(os.path.join(folder, name + ".raw"), data)
    for i, (name, n) in enumerate(sounds.items()):
        put(os.path.join(folder, name + ".wav"), wav(samples(n, i + 1)))


def put(path, data):
    with open(path, "wb") as f:
        f.write(data)
