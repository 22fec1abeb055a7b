/* fuzz_ipc.c - any datagram, inline or in a sealed memfd, as Frame and as Ctl.
 * room: proto
 * What parses must pack into exactly the bytes it says. (It need not parse again:
 * protobuf-c keeps unknown fields with tags it would itself refuse.) */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc.h"

static void try_one(const uint8_t *p, size_t n, int memfd, const ProtobufCMessageDescriptor *desc)
{
    ProtobufCMessage *m = NULL, *again = NULL;
    struct rc_err err = RC_ERR_INIT;
    enum rc rc = ipc_parse(p, n, memfd, desc, &m, &err);

    if (rc != RC_OK) {
        if (err.code != rc || !err.msg[0] || m)
            abort();
        return;
    }
    size_t n2 = protobuf_c_message_get_packed_size(m);
    uint8_t *b = malloc(n2 ? n2 : 1);
    if (protobuf_c_message_pack(m, b) != n2)
        abort();
    again = protobuf_c_message_unpack(desc, NULL, n2, b);
    if (again)
        protobuf_c_message_free_unpacked(again, NULL);
    if (desc == &ipc__frame__descriptor) {
        Ipc__Frame *f = (Ipc__Frame *)m;
        struct rc_err e;

        if (f->body_case == IPC__FRAME__BODY_ERROR && f->error) {
            ipc_error_to(&e, f->error);
            if (e.code == RC_OK || !ipc_utf8_valid(e.msg, strlen(e.msg)) ||
                !ipc_utf8_valid(e.what, strlen(e.what)))
                abort();
        }
    }
    protobuf_c_message_free_unpacked(m, NULL);
    free(b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    uint8_t head[IPC_HEAD_BYTES] = {0x49, 0x50, 0x49, 0x31};
    uint32_t magic = IPC_MAGIC, flags;
    uint8_t *whole;
    int fd;

    try_one(data, n, -1, &ipc__frame__descriptor);
    try_one(data, n, -1, &ipc__ctl__descriptor);
    if (n == 0 || n > IPC_INLINE_MAX)
        return 0;
    /* the same bytes as a body behind an honest header, to reach protobuf-c */
    whole = malloc(IPC_HEAD_BYTES + n);
    memcpy(whole, &magic, 4);
    flags = 0;
    memcpy(whole + 4, &flags, 4);
    memcpy(whole + 8, &(uint64_t){n}, 8);
    memcpy(whole + IPC_HEAD_BYTES, data, n);
    try_one(whole, IPC_HEAD_BYTES + n, -1, &ipc__frame__descriptor);
    try_one(whole, IPC_HEAD_BYTES + n, -1, &ipc__ctl__descriptor);
    free(whole);
    if (data[0] & 7) /* the memfd path is slow: one in eight */
        return 0;
    if ((fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING)) < 0)
        return 0;
    if (write(fd, data, n) == (ssize_t)n) {
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
        memcpy(head, &magic, 4);
        flags = IPC_F_MEMFD;
        memcpy(head + 4, &flags, 4);
        memcpy(head + 8, &(uint64_t){n}, 8);
        try_one(head, sizeof(head), fd, &ipc__frame__descriptor);
    }
    close(fd);
    return 0;
}
