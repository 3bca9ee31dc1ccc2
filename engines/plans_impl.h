/* Private to engines/: the form of a plan's file. */
#ifndef MLO_ENGINES_PLANS_IMPL_H
#define MLO_ENGINES_PLANS_IMPL_H

#include "engines/engines_impl.h"
#include "engines/plans.h"

#define PLAN_MAGIC "MLOPLAN"
#define PLAN_SEAL_MAGIC "MLOSEAL"
enum { PLAN_HEAD_ALIGN = 4096, PLAN_FINGERPRINT_MAX = 1 << 20 };

/* Followed by the fingerprint (canonical JSON) and zeros up to head_bytes, then by the engine's part up to
 * content_bytes. Numbers as this machine has them: a plan never leaves its kind of machine. */
struct plan_head {
    char magic[8];
    uint32_t format, fingerprint_bytes;
    uint64_t head_bytes, content_bytes;
};

/* Behind the content; absent in an unsigned file. */
struct plan_seal {
    char magic[8];
    struct mlo_public_key signer;
    struct mlo_digest digest; /* of the content */
    struct mlo_signature signature;
};

/* Head and seal of an opened file, with sizes that fit it. */
MLO_MUST_USE enum mlo_status plan_read_ends(int fd, const char *path, struct plan_head *head,
                                            struct plan_seal *seal, bool *is_signed, struct mlo_error *err);
/* The digest of the first `size` bytes; each goes to the sink (NULL: to nobody) as it is hashed. MLO_EIO when
 * there are fewer. */
MLO_MUST_USE enum mlo_status plan_hash(int fd, uint64_t size, mlo_plan_sink_fn *sink, void *arg,
                                       struct mlo_digest *out, struct mlo_error *err);
/* Whether the seal's signature is its signer's over its digest. */
bool plan_seal_holds(const struct plan_seal *seal);
/* The fingerprint out of the head. *out is yours. */
MLO_MUST_USE enum mlo_status plan_read_fingerprint(int fd, const struct plan_head *head, json_t **out,
                                                   struct mlo_error *err);

/* plan_trust.c: whether the user trusts that key. */
MLO_MUST_USE enum mlo_status plan_trusts(const struct mlo_public_key *signer,
                                         const struct mlo_plan_open_options *options, struct mlo_error *err);
/* plan_cache.c: the content that the seal names, where nobody else can change it. */
struct plan_content {
    int fd;         /* yours (close) */
    bool was_there; /* in the cache already: it was hashed when it was put there, and not since */
};
/* What is in the private cache, unless it is wanted `anew`, or a copy of fd's file that was hashed on the
 * way: into the cache, or where that cannot be, into memory. MLO_EDIGEST when that is another content. */
MLO_MUST_USE enum mlo_status plan_content(int fd, const struct plan_head *head, const struct plan_seal *seal,
                                          const struct mlo_plan_open_options *options, bool anew,
                                          struct plan_content *out, struct mlo_error *err);
/* Hashes it. */
bool plan_content_is_whole(const struct plan_content *content, const struct plan_head *head,
                           const struct plan_seal *seal);
/* "$<variable>/mlopt/<name>" or "$HOME/<fallback>/mlopt/<name>". *out is yours. */
MLO_MUST_USE enum mlo_status plan_place(const char *variable, const char *fallback, const char *name,
                                        char **out, struct mlo_error *err);

#endif
