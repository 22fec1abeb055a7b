/* wrk_sound.c - sounds through libsndfile, to one channel, to the rate the model hears.
 *
 * A stream in small pieces: read, mean over the channels, resample (libsoxr, quality HQ, one
 * thread), so that memory depends on the length that is allowed and not on the file's rate or
 * channels. The length is checked on the header, then on what comes. libsndfile sees the file
 * through callbacks on memory and has no path to open.
 * Tests: tests/worker/test_wrk_media.c, tests/fuzz/fuzz_sound.c
 */
#include "wrk_media_impl.h"

#include <math.h>
#include <sndfile.h>
#include <soxr.h>
#include <stdlib.h>
#include <string.h>

#define PIECE 4096 /* frames */

struct job {
    struct wrk_reader in;
    SNDFILE *file;
    SF_INFO info;
    soxr_t soxr; /* NULL: the rate is right already */
    struct wrk_sound *out;
    size_t cap;
    uint32_t ms;
    const struct wrk_media_stop *stop;
    float *raw, *mono; /* [PIECE, channels], [PIECE] */
};

/* ------------------------------------------------------------ a file in memory */

static sf_count_t in_length(void *user)
{
    return (sf_count_t)((struct wrk_reader *)user)->n;
}

static sf_count_t in_seek(sf_count_t offset, int whence, void *user)
{
    struct wrk_reader *r = user;
    sf_count_t base = whence == SEEK_CUR   ? (sf_count_t)r->at
                      : whence == SEEK_END ? (sf_count_t)r->n
                                           : 0;

    if (offset < -base || offset > (sf_count_t)r->n - base)
        return -1;
    r->at = (size_t)(base + offset);
    return (sf_count_t)r->at;
}

static sf_count_t in_read(void *to, sf_count_t count, void *user)
{
    struct wrk_reader *r = user;
    size_t n = count < 0 ? 0 : (size_t)count;

    if (n > r->n - r->at)
        n = r->n - r->at;
    memcpy(to, r->data + r->at, n);
    r->at += n;
    return (sf_count_t)n;
}

static sf_count_t in_write(const void *from, sf_count_t count, void *user)
{
    (void)from, (void)count, (void)user;
    return 0;
}

static sf_count_t in_tell(void *user)
{
    return (sf_count_t)((struct wrk_reader *)user)->at;
}

/* ------------------------------------------------------------------ the header */

static bool is_taken(enum wrk_media_kind kind, int format)
{
    static const struct {
        enum wrk_media_kind kind;
        int major, sub; /* sub 0: any */
    } taken[] = {
        {WRK_MEDIA_WAV, SF_FORMAT_WAV, SF_FORMAT_PCM_U8},
        {WRK_MEDIA_WAV, SF_FORMAT_WAV, SF_FORMAT_PCM_16},
        {WRK_MEDIA_WAV, SF_FORMAT_WAV, SF_FORMAT_PCM_24},
        {WRK_MEDIA_WAV, SF_FORMAT_WAV, SF_FORMAT_PCM_32},
        {WRK_MEDIA_WAV, SF_FORMAT_WAV, SF_FORMAT_FLOAT},
        {WRK_MEDIA_WAV, SF_FORMAT_WAV, SF_FORMAT_DOUBLE},
        {WRK_MEDIA_WAV, SF_FORMAT_WAV, SF_FORMAT_ULAW},
        {WRK_MEDIA_WAV, SF_FORMAT_WAV, SF_FORMAT_ALAW},
        {WRK_MEDIA_FLAC, SF_FORMAT_FLAC, 0},
        {WRK_MEDIA_OGG, SF_FORMAT_OGG, SF_FORMAT_VORBIS},
        {WRK_MEDIA_OGG, SF_FORMAT_OGG, SF_FORMAT_OPUS},
        {WRK_MEDIA_MP3, SF_FORMAT_MPEG, SF_FORMAT_MPEG_LAYER_III},
    };
    int major = format & SF_FORMAT_TYPEMASK, sub = format & SF_FORMAT_SUBMASK;

    if (major == SF_FORMAT_WAVEX)
        major = SF_FORMAT_WAV;
    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
        if (taken[i].kind == kind && taken[i].major == major &&
            (taken[i].sub == 0 || taken[i].sub == sub))
            return true;
    return false;
}

static enum rc too_long(uint64_t ms, uint32_t limit, struct rc_err *err)
{
    return rc_bound(rc_fail(err, RC_TOO_LARGE, "a sound of %.3f s, at most %.3f s",
                            (double)ms / 1000, (double)limit / 1000),
                    ms, limit, err);
}

/* Milliseconds of so many frames, rounded up: 30 s and one frame are more than 30 s. */
static uint64_t length_ms(uint64_t frames, int rate)
{
    uint64_t r = (uint64_t)rate;

    return frames / r * 1000 + (frames % r * 1000 + r - 1) / r;
}

static enum rc check_header(const struct job *j, enum wrk_media_kind kind, struct rc_err *err)
{
    const SF_INFO *i = &j->info;

    if (!is_taken(kind, i->format)) {
        SF_FORMAT_INFO name = {.format = i->format & SF_FORMAT_SUBMASK};

        if (sf_command(NULL, SFC_GET_FORMAT_INFO, &name, sizeof(name)) != 0 || name.name == NULL)
            name.name = "a kind without a name";
        return rc_fail(err, RC_UNSUPPORTED, "the sound is coded as %s, which is not taken",
                       name.name);
    }
    if (i->channels < 1 || i->channels > WRK_SOUND_CHANNELS_MAX)
        return rc_fail(err, RC_INVALID, "a sound of %d channels, 1 to %d are taken", i->channels,
                       WRK_SOUND_CHANNELS_MAX);
    if (i->samplerate < WRK_SOUND_RATE_MIN || i->samplerate > WRK_SOUND_RATE_MAX)
        return rc_fail(err, RC_INVALID, "a sound of %d samples a second, %d to %d are taken",
                       i->samplerate, WRK_SOUND_RATE_MIN, WRK_SOUND_RATE_MAX);
    if (i->frames == 0)
        return rc_fail(err, RC_INVALID, "a sound without samples");
    /* a stream may not know its length: SF_COUNT_MAX, or less than nothing */
    if (i->frames > 0 && i->frames != SF_COUNT_MAX &&
        length_ms((uint64_t)i->frames, i->samplerate) > j->ms)
        return too_long(length_ms((uint64_t)i->frames, i->samplerate), j->ms, err);
    return RC_OK;
}

/* ------------------------------------------------------------------ the samples */

static enum rc open_resampler(struct job *j, uint32_t rate, struct rc_err *err)
{
    soxr_io_spec_t io = soxr_io_spec(SOXR_FLOAT32_I, SOXR_FLOAT32_I);
    soxr_quality_spec_t q = soxr_quality_spec(SOXR_HQ, 0);
    soxr_runtime_spec_t threads = soxr_runtime_spec(1);
    soxr_error_t failed = NULL;

    if ((uint32_t)j->info.samplerate == rate)
        return RC_OK;
    j->soxr = soxr_create(j->info.samplerate, rate, 1, &failed, &io, &q, &threads);
    if (j->soxr == NULL || failed != NULL)
        return rc_fail(err, RC_NOMEM, "resampler from %d to %u samples a second: %s",
                       j->info.samplerate, rate, failed != NULL ? failed : "no memory");
    return RC_OK;
}

/* n samples more, NULL at the end of the sound. */
static enum rc put(struct job *j, const float *mono, size_t n, struct rc_err *err)
{
    struct wrk_sound *out = j->out;
    size_t took = 0, made = 0;

    if (j->soxr == NULL) {
        if (mono != NULL && n > j->cap - out->n)
            return too_long(length_ms(out->n + n, (int)out->rate), j->ms, err);
        if (mono != NULL)
            memcpy(out->pcm + out->n, mono, n * sizeof(float));
        out->n += mono != NULL ? n : 0;
        return RC_OK;
    }
    do {
        soxr_error_t failed = soxr_process(j->soxr, mono, mono != NULL ? n : 0, &took,
                                           out->pcm + out->n, j->cap - out->n, &made);

        if (failed != NULL)
            return rc_fail(err, RC_INTERNAL, "resampler: %s", failed);
        if (mono != NULL)
            mono += took;
        n -= took;
        out->n += made;
    } while (made > 0 || (n > 0 && took > 0));
    if (n > 0) /* the room is for all that may come */
        return rc_fail(err, RC_INTERNAL, "resampler: %zu samples left over", n);
    return RC_OK;
}

static enum rc decode(struct job *j, struct rc_err *err)
{
    const uint32_t n_ch = (uint32_t)j->info.channels;
    uint64_t frames = 0;
    enum rc rc;

    for (;;) {
        sf_count_t got;

        if (wrk_media_stopped(j->stop))
            return wrk_media_stop_error(err);
        got = sf_readf_float(j->file, j->raw, PIECE);
        if (sf_error(j->file) != SF_ERR_NO_ERROR)
            return rc_fail(err, RC_INVALID, "broken sound after %llu frames: %s",
                           (unsigned long long)frames, sf_strerror(j->file));
        if (got <= 0)
            break;
        frames += (uint64_t)got;
        if (length_ms(frames, j->info.samplerate) > j->ms)
            return too_long(length_ms(frames, j->info.samplerate), j->ms, err);
        for (sf_count_t i = 0; i < got; i++) {
            float sum = 0;

            for (uint32_t c = 0; c < n_ch; c++)
                sum += j->raw[(size_t)i * n_ch + c];
            j->mono[i] = sum / (float)n_ch;
            if (!isfinite(j->mono[i]))
                return rc_fail(err, RC_INVALID, "sample %llu of the sound is not finite",
                               (unsigned long long)(frames - (uint64_t)got + (uint64_t)i));
        }
        if ((rc = put(j, j->mono, (size_t)got, err)) != RC_OK)
            return rc;
    }
    if (frames == 0)
        return rc_fail(err, RC_INVALID, "a sound without samples");
    if (j->info.frames > 0 && j->info.frames != SF_COUNT_MAX && frames < (uint64_t)j->info.frames)
        return rc_fail(err, RC_INVALID,
                       "the sound is cut short or damaged: its header says %lld frames, %llu are "
                       "there",
                       (long long)j->info.frames, (unsigned long long)frames);
    return put(j, NULL, 0, err);
}

static enum rc run(struct job *j, enum wrk_media_kind kind, uint32_t rate, struct rc_err *err)
{
    SF_VIRTUAL_IO io = {in_length, in_seek, in_read, in_write, in_tell};
    uint64_t most;
    enum rc rc;

    if ((rc = wrk_sound_whole(kind, j->in.data, j->in.n, err)) != RC_OK)
        return rc;
    if ((j->file = sf_open_virtual(&io, SFM_READ, &j->info, &j->in)) == NULL)
        return rc_fail(err, RC_INVALID, "broken sound: %s", sf_strerror(NULL));
    if ((rc = check_header(j, kind, err)) != RC_OK || (rc = open_resampler(j, rate, err)) != RC_OK)
        return rc;
    /* frames of a sound of ms, as many of them as the resampler makes, and its rounding */
    most = ((uint64_t)j->ms * rate + 999) / 1000;
    j->cap = (size_t)most + (j->soxr != NULL ? 64 : 0);
    j->out->rate = rate;
    j->out->pcm = malloc((j->cap + 1) * sizeof(float));
    j->raw = malloc((size_t)PIECE * (size_t)j->info.channels * sizeof(float));
    j->mono = malloc(PIECE * sizeof(float));
    if (j->out->pcm == NULL || j->raw == NULL || j->mono == NULL)
        return rc_fail(err, RC_NOMEM, "a sound of %u ms", j->ms);
    if ((rc = decode(j, err)) != RC_OK)
        return rc;
    if (j->out->n > most)
        j->out->n = (size_t)most;
    for (size_t i = 0; i < j->out->n; i++) /* finite samples of any size: their sums may not be */
        if (!isfinite(j->out->pcm[i]))
            return rc_fail(err, RC_INVALID, "the sound is too loud: sample %zu overflows", i);
    if (j->out->n == 0)
        return rc_fail(err, RC_INVALID, "a sound of less than one sample");
    return RC_OK;
}

enum rc wrk_sound_decode(struct wrk_sound *out, enum wrk_media_kind kind, const uint8_t *data,
                         size_t n, uint32_t rate, uint32_t ms, const struct wrk_media_stop *stop,
                         struct rc_err *err)
{
    struct wrk_sound snd = {0};
    struct job j = {.in = {data, n, 0}, .out = &snd, .ms = ms, .stop = stop};
    enum rc rc;

    if (!wrk_media_is_sound(kind))
        return rc_fail(err, RC_UNSUPPORTED, "the file is no sound");
    if ((rc = run(&j, kind, rate, err)) == RC_OK)
        *out = snd;
    else
        wrk_sound_deinit(&snd);
    if (j.file != NULL)
        sf_close(j.file);
    soxr_delete(j.soxr);
    free(j.raw);
    free(j.mono);
    return rc;
}

void wrk_sound_deinit(struct wrk_sound *snd)
{
    free(snd->pcm);
    *snd = (struct wrk_sound){0};
}
