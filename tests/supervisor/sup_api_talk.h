/* sup_api_talk.h - what tests of chat's tools and of responses share: a model that calls
 * tools and thinks, a request submitted, an answer played. Define TALK_PATH, then include
 * once per program.
 */
#ifndef SUP_API_TALK_H
#define SUP_API_TALK_H

#include "sup_api_fake.h"

static int setup(void **state)
{
    (void)state;
    fake_setup();
    T.gemma.can_call_tools = T.gemma.can_think = true;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fake_teardown();
    return 0;
}

static const Ipc__Generate *asked(const char *body)
{
    unsigned n = T.fleet.n_tickets;

    fake_req_reset();
    fake_post(TALK_PATH, body);
    if (T.fleet.n_tickets != n + 1)
        fail_msg("%s: %s", body, fake_answer());
    return fake_ticket(n)->frame->generate;
}

static void leave(void)
{
    T.req.abort_fn(T.req.abort_user);
    T.req.done = true;
}

static ProtobufCBinaryData bytes_of(const char *s)
{
    return (ProtobufCBinaryData){strlen(s), (uint8_t *)(uintptr_t)s};
}

/* A Delta with a thought, a text, a piece of a call. */
static void said(const char *thought, const char *text, const char *name, const char *args,
                 bool ended, uint32_t finish)
{
    Ipc__Frame fr = IPC__FRAME__INIT;
    Ipc__Delta d = IPC__DELTA__INIT;
    Ipc__CallPart p = IPC__CALL_PART__INIT;

    d.finish = finish;
    d.reasoning = bytes_of(thought);
    d.reasoning_tokens = thought[0] != '\0';
    d.text = bytes_of(text);
    p.name = bytes_of(name);
    p.arguments = bytes_of(args);
    p.ended = ended;
    if (name[0] || args[0] || ended)
        d.call = &p;
    fr.body_case = IPC__FRAME__BODY_DELTA;
    fr.delta = &d;
    fake_play(0, &fr);
}

/* The call at work is none: what it was written in follows. */
static inline void said_void(const char *text)
{
    Ipc__Frame fr = IPC__FRAME__INIT;
    Ipc__Delta d = IPC__DELTA__INIT;
    Ipc__CallPart p = IPC__CALL_PART__INIT;

    p.ended = p.broken = true;
    d.call = &p;
    d.text = bytes_of(text);
    fr.body_case = IPC__FRAME__BODY_DELTA;
    fr.delta = &d;
    fake_play(0, &fr);
}

#endif
