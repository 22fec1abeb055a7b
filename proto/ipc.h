/* ipc.h - framing of protobuf messages on a Unix socketpair.
 *
 * Transport: AF_UNIX SOCK_SEQPACKET made with ipc_pair. One datagram is one
 * frame: a 16-byte little-endian header {u32 magic, u32 flags, u64 body_bytes}
 * followed by the body, or - when the packed body is larger than
 * IPC_INLINE_MAX - by nothing, with the body in a sealed memfd that travels
 * beside it (SCM_RIGHTS, flag IPC_F_MEMFD). The reader checks seals
 * (F_SEAL_SHRINK|GROW|WRITE), size and IPC_BODY_MAX before mapping, so a peer can
 * neither truncate under our feet nor make us allocate at will: what protobuf-c may
 * allocate for one frame is bounded by its size (ipc.c, unpack_budget).
 *
 * Extra descriptors (launcher only) travel with flag IPC_F_FDS; all received
 * descriptors are close-on-exec; unexpected ones are closed and the frame refused.
 *
 * No policy, no logging, no state beyond the descriptor. Thread rule: one thread per
 * channel reads; several may send, for a frame is one datagram, and no order holds between
 * their frames. Tests: tests/proto/test_ipc.c, tests/fuzz/fuzz_ipc.c
 */
#ifndef INFERD_IPC_H
#define INFERD_IPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "inferd.pb-c.h"
#include "rc.h"

#define IPC_VERSION 2u
#define IPC_DRAFTER_DIR "assistant" /* in a model's folder: its drafter */
#define IPC_CALIBRATIONS_DIR "calibrations" /* in a model's folder: artifacts, ID.json */
#define IPC_DECIDE_RENDERER "instruction-category-v1"
#define IPC_DECIDE_QUESTIONS 64u
#define IPC_DECIDE_CHOICES 64u
#define IPC_DECIDE_EXAMPLES 32u
#define IPC_DECIDE_INPUTS 128u
#define IPC_DECIDE_TEXTS 4096u        /* inputs x questions, and examples and descriptions */
#define IPC_DECIDE_BYTES (64u << 20)  /* of those texts together */
#define IPC_CALIBRATION_ID_MAX 64u
/* Embed.outputs */
#define IPC_OUT_DENSE 1u
#define IPC_OUT_SPARSE 2u
#define IPC_OUT_TOKENS 4u
/* Of an Extract task. Names, in bytes: of labels, fields, records, relations, tasks, choices. */
#define IPC_EXTRACT_INPUTS 1024u
#define IPC_EXTRACT_INPUT_BYTES (8u << 20) /* of one text */
#define IPC_EXTRACT_SCHEMAS 64u
#define IPC_EXTRACT_LABELS 8192u   /* of a schema: labels, fields, relations, classes, choices */
#define IPC_EXTRACT_SPANS (1u << 20) /* of an answer */
#define IPC_EXTRACT_NAME_BYTES 512u
#define IPC_EXTRACT_WORDING_BYTES (16u << 10) /* a description, a prompt, a side of an example */
#define IPC_EXTRACT_EXAMPLES 64u   /* of a task */
#define IPC_EXTRACT_PATTERNS 16u   /* of a field */
#define IPC_EXTRACT_PATTERN_BYTES 1024u
#define IPC_MAGIC 0x31495049u        /* "IPI1" */
#define IPC_INLINE_MAX (64u * 1024u) /* packed bytes carried in the datagram */
#define IPC_BODY_MAX (256ull << 20)  /* packed bytes in a memfd */
#define IPC_FDS_MAX 4
#define IPC_HEAD_BYTES 16
#define IPC_F_MEMFD 1u /* body in the first descriptor, datagram is the header only */
#define IPC_F_FDS 2u   /* descriptors for the reader follow (after the memfd, if any) */

/* A close-on-exec, SOCK_SEQPACKET pair with send buffers large enough for a
 * full inline frame. Errors: RC_IO. */
enum rc ipc_pair(int fds[2], struct rc_err *err);

/* Packs and sends one message. `fd` may be blocking or not.
 * fds/n_fds: descriptors to pass (borrowed), n_fds <= IPC_FDS_MAX.
 * Errors: RC_AGAIN socket full (nothing was sent), RC_CLOSED peer gone,
 * RC_TOO_LARGE over IPC_BODY_MAX, RC_NOMEM, RC_IO. */
enum rc ipc_send(int fd, const ProtobufCMessage *msg, const int *fds,
                 size_t n_fds, struct rc_err *err);

/* The same for an already packed body. */
enum rc ipc_send_packed(int fd, const void *body, size_t n_bytes, const int *fds,
                        size_t n_fds, struct rc_err *err);

/* Receives one message of type `desc` (&ipc__frame__descriptor or
 * &ipc__ctl__descriptor). *out is freed with protobuf_c_message_free_unpacked.
 * out_fds has room for IPC_FDS_MAX; *out_n_fds descriptors now belong to the
 * caller. Both may be NULL: then any descriptor is an error.
 * Errors: RC_AGAIN nothing to read (non-blocking), RC_CLOSED end of stream,
 * RC_FORMAT bad header, seal, size or protobuf, RC_TOO_LARGE, RC_NOMEM, RC_IO.
 * When this process may hold no more descriptors, a frame that brings some comes without
 * (*out_n_fds is 0), and one whose body is a descriptor is lost (RC_NOMEM). */
enum rc ipc_recv(int fd, const ProtobufCMessageDescriptor *desc,
                 ProtobufCMessage **out, int *out_fds, size_t *out_n_fds,
                 struct rc_err *err);

/* Parses one datagram already in memory (no descriptors); the fuzz target's
 * door and ipc_recv's own second half. Errors as ipc_recv. */
enum rc ipc_parse(const void *datagram, size_t n_bytes, int memfd,
                  const ProtobufCMessageDescriptor *desc, ProtobufCMessage **out,
                  struct rc_err *err);

/* True for well-formed UTF-8 (no surrogates, no overlong forms, <= U+10FFFF). NUL
 * is allowed. */
bool ipc_utf8_valid(const void *s, size_t n_bytes);

/* An Error frame body from err and back. The Ipc__Error borrows err's strings.
 * _to distrusts its input: bytes that are not UTF-8 become '?', an unknown code (or
 * OK, which is no error) becomes RC_INTERNAL, long text is cut at a character, an unknown stage is
 * none. */
void ipc_error_from(Ipc__Error *out, const struct rc_err *err);
void ipc_error_to(struct rc_err *out, const Ipc__Error *in);

/* Where one input of many may fail, as clients are told (http-api.md 2.2). */
#define IPC_STAGE_PARSE "parse"
#define IPC_STAGE_FETCH "fetch"
#define IPC_STAGE_IMAGE "image_decode"
#define IPC_STAGE_SOUND "audio_decode"
#define IPC_STAGE_TEXT_RUN "text_inference"
#define IPC_STAGE_IMAGE_RUN "image_inference"
#define IPC_STAGE_SOUND_RUN "audio_inference"
/* The constant that is this word; NULL: none of them. */
const char *ipc_stage(const char *word);

#endif
