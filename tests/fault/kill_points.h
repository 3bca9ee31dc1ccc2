/* What tests/fault/test_kill_server.c and the library that it loads into `mlopt server` (kill_points.c) tell
 * each other, in a file that both have mapped. A step is a call that changes a file of the store or the
 * ledger, or talks to PostgreSQL, seen from before and from behind it; it is named by its text and its
 * occurrence, so that the same step is found again whatever the server's threads do meanwhile. */
#ifndef MLO_TESTS_KILL_POINTS_H
#define MLO_TESTS_KILL_POINTS_H

#include <stdatomic.h>
#include <stddef.h>
#include <sys/types.h>

enum fault_kind {
    FAULT_NONE,
    FAULT_KILL,    /* SIGKILL of the server */
    FAULT_CUT,     /* pg_terminate_backend of all its connections */
    FAULT_DATABASE /* PostgreSQL ends at once: SIGQUIT, its immediate shutdown */
};

enum { FAULT_STEPS_MAX = 1024, FAULT_STEP_TEXT = 96 };

struct fault_step {
    char text[FAULT_STEP_TEXT]; /* "before PQsendQueryPrepared blob_note" */
    long count;
};

struct fault_plan {
    _Atomic int armed; /* steps are counted, and the fault strikes */
    enum fault_kind kind;
    char at[FAULT_STEP_TEXT]; /* the step, and its occurrence, 0 the first */
    long occurrence;
    _Atomic int struck;
    _Atomic int going; /* threads at a step; disarmed and 0: nothing strikes anymore */
    char admin[512];   /* conninfo of the superuser */
    pid_t database;    /* of the postmaster */
    _Atomic size_t count;
    struct fault_step steps[FAULT_STEPS_MAX];
};

#endif
