/* Statuses and errors.
 *
 * Every function that can fail returns an enum mlo_status and takes a caller-owned
 * `struct mlo_error *err` as its last argument (NULL is allowed: the detail is dropped). The error
 * says what failed, where (a node, a field, file:line) and what to do next. Libraries never print
 * and never exit. One table maps a status to its stable code, HTTP status, exit code and whether
 * trying again can help. */
#ifndef MLO_BASE_ERROR_H
#define MLO_BASE_ERROR_H

#include <stdbool.h>

#include "base/macros.h"

enum mlo_status {
    MLO_OK = 0,
    MLO_EINVAL,        /* a value is wrong: bad argument, label out of range, bad option */
    MLO_EUSAGE,        /* the command line itself is wrong */
    MLO_EFORMAT,       /* bytes are not what they claim to be: truncated ONNX, broken npz, bad YAML */
    MLO_EUNSUPPORTED,  /* well-formed, but something in it is not supported (an unknown op) */
    MLO_ENOTFOUND,     /* no such model, file, dataset… */
    MLO_EEXISTS,       /* it exists already */
    MLO_ECONFLICT,     /* the state does not allow it */
    MLO_EPRECONDITION, /* If-Match did not match: somebody moved the pointer first */
    MLO_EPRECONDITION_REQUIRED, /* If-Match is required and absent */
    MLO_EAUTH,                  /* no or a wrong token */
    MLO_EFORBIDDEN,             /* the token's role does not allow it */
    MLO_EGATE,                  /* a promotion gate refused */
    MLO_EEXPECT,                /* an expectation of the recipe does not hold */
    MLO_EDIGEST,                /* bytes do not hash to the digest they were named by */
    MLO_ERANGE,                 /* an offset is not where the bytes are */
    MLO_ETOOBIG,                /* larger than a limit that protects the process */
    MLO_ENOMEM,                 /* out of memory */
    MLO_ENOSPC,                 /* disk full */
    MLO_EIO,                    /* reading or writing failed */
    MLO_EUNAVAILABLE, /* a server this needs (PostgreSQL, blob store, engine library) is not there now */
    MLO_ETIMEOUT,     /* not done in time */
    MLO_ECANCELLED,   /* somebody cancelled it */
    MLO_ELEASE,       /* the job's lease is lost: another attempt owns it */
    MLO_EJOB,         /* a job of the run failed */
    MLO_ESTALE,       /* a plan that was compiled for another machine, engine or model */
    MLO_ENODEVICE,    /* the engine, or the device, that was asked for is not on this machine */
    MLO_EQUOTA,       /* what its project may have is used up */
    MLO_EINTERNAL,    /* a bug in mlopt */
    MLO_STATUS_COUNT
};

/* Detail of a failure, owned by the caller (usually on its stack). Zero-initialise it. */
struct mlo_error {
    enum mlo_status status;
    char message[512]; /* what failed and why: one sentence, no final newline */
    char where[256]; /* the place it concerns: "node 'conv1'", "recipe.yaml:7", "field 'batch'"; may be "" */
    char hint[384];  /* what to do next; may be "" */
};

struct mlo_status_info {
    enum mlo_status status;
    const char *code; /* stable, for machines: "not-found" */
    const char *text; /* for people: "not found" */
    int http;
    int exit_code; /* 0 ok, 1 failed, 2 usage, 3 not found, 4 auth, 5 conflict, 6 job failed,
                      7 timed out, 8 refused by a gate */
    bool retry;    /* trying the same again later can help */
};

/* The row of the status table; never NULL (an unknown value gives the row of MLO_EINTERNAL). */
const struct mlo_status_info *mlo_status_info(enum mlo_status status);

/* The status whose code is `code`; MLO_EINTERNAL if there is none. */
enum mlo_status mlo_status_from_code(const char *code);

/* Fills `err` (message from the format, empty where and hint) and returns `status`, so that a
 * failure is one line: return mlo_error_set(err, MLO_EINVAL, "batch is %d", n);
 * MLO_OK is no failure: it becomes MLO_EINTERNAL.
 * Control characters and broken UTF-8 become '?', here and in the functions below. */
enum mlo_status mlo_error_set(struct mlo_error *err, enum mlo_status status, const char *fmt, ...)
    MLO_PRINTF(3, 4);

/* Like mlo_error_set, and appends strerror(errno_value); ENOSPC/EDQUOT, ENOENT, ENOMEM, EACCES choose
 * their own status, all else becomes MLO_EIO. */
enum mlo_status mlo_error_errno(struct mlo_error *err, int errno_value, const char *fmt, ...)
    MLO_PRINTF(3, 4);

/* Adds the place; keeps one that is already there (the innermost is the most precise). */
void mlo_error_where(struct mlo_error *err, const char *fmt, ...) MLO_PRINTF(2, 3);

/* Adds what to do next; keeps one that is already there. */
void mlo_error_hint(struct mlo_error *err, const char *fmt, ...) MLO_PRINTF(2, 3);

/* Puts "prefix: " in front of the message: the context that an outer function knows. */
void mlo_error_prefix(struct mlo_error *err, const char *fmt, ...) MLO_PRINTF(2, 3);
/* Takes every occurrence of `text` out of message, where and hint: the folder of a temporary copy, say. */
void mlo_error_cut(struct mlo_error *err, const char *text);

/* Sets "out of memory" and returns MLO_ENOMEM. */
enum mlo_status mlo_error_nomem(struct mlo_error *err);

/* What fails returns a failure: the compiler is told, so that it does not take a result that only success
 * fills for one that may be used uninitialized. */
static inline enum mlo_status mlo_error_failed(enum mlo_status status)
{
    if (status == MLO_OK)
        __builtin_unreachable();
    return status;
}
#define mlo_error_set(...) mlo_error_failed((mlo_error_set)(__VA_ARGS__))
#define mlo_error_errno(...) mlo_error_failed((mlo_error_errno)(__VA_ARGS__))
#define mlo_error_nomem(err) mlo_error_failed((mlo_error_nomem)(err))

#endif
