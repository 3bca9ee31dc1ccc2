/* Compiled plans as files: a head with a fingerprint of all that the plan depends on, the engine's own part,
 * and a signature over the SHA-256 of both.
 *
 * A plan is as trusted as a program: it is loaded only when a key that the user trusts signed it. A plan that
 * was checked once lies in a private cache under its digest; opening the same file again checks the signature
 * of that digest (a fraction of a millisecond) and maps the copy, whose bytes nobody else can change. A copy
 * that does not restore is hashed, and made again when it was damaged.
 *
 * Places: the user's own key $XDG_CONFIG_HOME/mlopt/plan.key (0600, made when it is first needed), keys
 * trusted besides it $XDG_CONFIG_HOME/mlopt/plan-trust (a public key a line, then a comment), the cache
 * $XDG_CACHE_HOME/mlopt/plans (0700). */
#ifndef MLO_ENGINES_PLANS_H
#define MLO_ENGINES_PLANS_H

#include "engines/engines.h"

#define MLO_PLAN_FORMAT 1
/* An environment variable with more trusted keys, one a line: for what a program starts itself. */
#define MLO_PLAN_TRUST_ENV "MLOPT_PLAN_TRUST"

/* Whether the file begins as a plan's does (it may still be broken). */
bool mlo_plan_is_file(const char *path);

/* What the plan was made from: part of its fingerprint. */
struct mlo_plan_source {
    struct mlo_digest model; /* SHA-256 of the model file */
    enum mlo_numerics numerics;
    unsigned threads; /* 0: 1 */
    int64_t batch;
};

/* The fingerprint: {"format","mlopt","machine":{engine's identity},"numerics","threads","batch","model",
 * "inputs":[{"name","type"}],"outputs":[…]}. *out is yours. MLO_EUNSUPPORTED: the engine has no plan files.
 */
MLO_MUST_USE enum mlo_status mlo_plan_fingerprint(const struct mlo_engine *engine,
                                                  const struct mlo_plan *plan,
                                                  const struct mlo_plan_source *source, json_t **out,
                                                  struct mlo_error *err);
/* Writes the plan to `path`, atomically, signed with the key (NULL: unsigned; mlo_plan_sign makes a signed
 * copy). */
MLO_MUST_USE enum mlo_status mlo_plan_write(const struct mlo_engine *engine, const struct mlo_plan *plan,
                                            const struct mlo_plan_source *source,
                                            const struct mlo_sign_key *key, const char *path,
                                            struct mlo_error *err);
/* Gets a signed plan's bytes in order. */
typedef enum mlo_status mlo_plan_sink_fn(void *arg, const void *bytes, size_t size, struct mlo_error *err);
struct mlo_plan_signing {
    const struct mlo_sign_key *key;
    const json_t *fingerprint; /* what the plan must say of itself, else MLO_EFORMAT */
    uint64_t max_bytes;        /* of the signed plan, else MLO_ETOOBIG */
    mlo_plan_sink_fn *sink;
    void *arg;
};
/* Signs what another process wrote: each byte of the open file is read once, and what is checked, signed and
 * given to the sink is the same bytes, whatever happens to the file meanwhile. An earlier signature is left
 * out. After an error, what the sink got is to be thrown away. `name` is for messages. */
MLO_MUST_USE enum mlo_status mlo_plan_sign(int fd, const char *name, const struct mlo_plan_signing *how,
                                           struct mlo_error *err);

struct mlo_plan_info {
    json_t *fingerprint; /* owned */
    bool is_signed;
    struct mlo_public_key signer;
    struct mlo_digest digest; /* of the content, as the signature states it, else as computed */
    uint64_t file_bytes, content_bytes, head_bytes;
};
/* Reads a plan's head. With `verify` its bytes are hashed and the signature is checked (not whether its
 * signer is trusted): MLO_EDIGEST when they do not agree. Clear it. */
MLO_MUST_USE enum mlo_status mlo_plan_inspect(const char *path, bool verify, struct mlo_plan_info *out,
                                              struct mlo_error *err);
void mlo_plan_info_clear(struct mlo_plan_info *info);
/* MLO_ESTALE, with what differs, when the fingerprint's machine is not this one; the engine is found by it.
 */
MLO_MUST_USE enum mlo_status mlo_plan_check_machine(const json_t *fingerprint,
                                                    const struct mlo_engine **engine, struct mlo_error *err);

struct mlo_plan_open_options {
    const struct mlo_public_key *trusted; /* besides the user's own key and list */
    size_t trusted_count;
    const char *cache_dir;          /* NULL: the user's */
    const struct mlo_digest *model; /* when given: the model that it must be of, else MLO_ESTALE */
    struct mlo_error *warning;      /* when given, and the cache could not be used: why (else untouched). The
                                       plan is then hashed, and copied into memory, each time it is opened */
};
struct mlo_plan_file; /* an opened plan, its mapping and its engine */

/* Opens, checks and restores a plan. Errors: MLO_EFORMAT (no plan, or cut off), MLO_EAUTH (unsigned, or
 * signed by a key that is not trusted, or the signature is wrong), MLO_EDIGEST (the bytes were changed),
 * MLO_ESTALE (made for another machine, engine, version or model). `options` may be NULL. */
MLO_MUST_USE enum mlo_status mlo_plan_open(const char *path, const struct mlo_plan_open_options *options,
                                           struct mlo_plan_file **out, struct mlo_error *err);
void mlo_plan_close(struct mlo_plan_file *file); /* after all programs of it; NULL is fine */
const struct mlo_engine *mlo_plan_file_engine(const struct mlo_plan_file *file);
struct mlo_plan *mlo_plan_file_plan(const struct mlo_plan_file *file);
unsigned mlo_plan_file_threads(const struct mlo_plan_file *file); /* that it was compiled for */
const json_t *mlo_plan_file_fingerprint(const struct mlo_plan_file *file);
/* A model with the plan's inputs and outputs, their shapes fixed; borrowed. */
const struct mlo_model *mlo_plan_file_model(const struct mlo_plan_file *file);

/* Whether the user trusts what this key signed: it is the user's own, in plan-trust, or in MLOPT_PLAN_TRUST.
 * MLO_EAUTH when not. */
MLO_MUST_USE enum mlo_status mlo_plan_key_trusted(const struct mlo_public_key *signer, struct mlo_error *err);

/* The user's own key, made at first use. `path` NULL: the usual place. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_plan_own_key(const char *path, struct mlo_sign_key **out,
                                              struct mlo_error *err);

#endif
