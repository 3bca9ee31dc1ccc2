/* The hash chain of an audit log, checked on this machine from the bytes that `GET …/audit/chain` gives. */
#ifndef MLO_CLI_CHAIN_H
#define MLO_CLI_CHAIN_H

#include "api/cli/core/cli.h"

struct mlo_chain {
    int64_t entries, last;                 /* seen; the number of the last one */
    struct mlo_digest hash;                /* of the last one, as the server says it */
    int64_t remembered_seq;                /* the head that was seen last time; 0: none. Set by the caller */
    char remembered[MLO_DIGEST_TEXT_SIZE]; /* and its hash */
    int64_t bad_seq;                       /* the lowest entry that is wrong; 0: none */
    char problem[256];                     /* what is wrong with it */
    struct mlo_hasher *hasher;
};

/* Called for each entry: its body (`size` bytes, not ended by a NUL) and the hash computed of it. */
typedef enum mlo_status mlo_chain_fn(void *arg, int64_t seq, const char *body, size_t size,
                                     const struct mlo_digest *hash, struct mlo_error *err);

MLO_MUST_USE enum mlo_status mlo_chain_begin(struct mlo_chain *chain, struct mlo_error *err);
/* Checks the entries of one answer, which go on where the last one ended: hash = SHA-256(prev_hash || seq, 8
 * bytes big-endian || body). MLO_EFORMAT when the answer is none; what is wrong with the chain is in bad_seq.
 */
MLO_MUST_USE enum mlo_status mlo_chain_check(struct mlo_chain *chain, const char *answer, size_t size,
                                             mlo_chain_fn *fn, void *arg, struct mlo_error *err);
/* After the last answer: whether the log was cut since it was seen last. */
void mlo_chain_end(struct mlo_chain *chain);
/* Says what is wrong with an entry; the lowest counts. */
void mlo_chain_bad(struct mlo_chain *chain, int64_t seq, const char *fmt, ...) MLO_PRINTF(3, 4);
void mlo_chain_clear(struct mlo_chain *chain);

#endif
