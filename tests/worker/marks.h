/* marks.h - how scripts of the tests write the marks of an answer: '\1' and a letter. */
#ifndef TEST_WORKER_MARKS_H
#define TEST_WORKER_MARKS_H

#define CH "\1c"
#define CE "\1d"
#define TC "\1t"
#define TE "\1u"
#define TR "\1r"
#define Q "\1q"

#endif
