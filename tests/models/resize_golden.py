#!/usr/bin/env python3
"""Prints the rows of resize_golden.h: what Pillow makes of pictures that test_mdl_media.c draws
with the same generator. Usage: resize_golden.py > resize_golden.h   (needs Pillow)"""
import PIL
from PIL import Image

SIZES = [  # width, height, channels, new width, new height
    (1, 1, 3, 48, 48), (7, 5, 3, 7, 5), (7, 5, 3, 7, 15), (7, 5, 3, 21, 5), (5, 7, 4, 2, 3),
    (97, 61, 3, 120, 72), (97, 61, 4, 30, 18), (300, 2, 3, 48, 48), (2, 300, 4, 48, 48),
    (64, 64, 3, 63, 65), (513, 511, 3, 96, 96), (40, 3000, 3, 12, 840), (3000, 1, 3, 336, 12),
    (1, 20000, 3, 48, 96), (10, 1001, 4, 5, 900), (10, 1001, 3, 17, 1001), (10, 1000, 3, 17, 99), (640, 480, 4, 108, 84), (33, 33, 3, 1, 1), (256, 16, 3, 255, 17),
]


def draw(n):
    x, out = 12345, bytearray(n)
    for i in range(n):
        x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
        # runs of black and white among noise: the filter over- and undershoots there
        out[i] = 255 if x >> 30 == 3 else 0 if x >> 30 == 2 else (x >> 16) & 255
    return bytes(out)


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


print("/* Made by resize_golden.py with Pillow %s. */" % PIL.__version__)
for w, h, c, nw, nh in SIZES:
    im = Image.frombytes("RGB" if c == 3 else "RGBA", (w, h), draw(w * h * c)).convert("RGB")
    got = im.resize((nw, nh), Image.Resampling.BICUBIC).tobytes()
    print("{%d, %d, %d, %d, %d, 0x%016xull}," % (w, h, c, nw, nh, fnv(got)))
