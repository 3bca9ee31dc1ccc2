#include "api/cli/core/chain.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum mlo_status mlo_chain_begin(struct mlo_chain *chain, struct mlo_error *err)
{
    memset(chain, 0, sizeof *chain);
    chain->hasher = mlo_hasher_new();
    return chain->hasher ? MLO_OK : mlo_error_nomem(err);
}

void mlo_chain_clear(struct mlo_chain *chain)
{
    mlo_hasher_free(chain->hasher);
    chain->hasher = NULL;
}

void mlo_chain_bad(struct mlo_chain *chain, int64_t seq, const char *fmt, ...)
{
    va_list args;
    if (chain->bad_seq && chain->bad_seq <= seq)
        return;
    chain->bad_seq = seq;
    va_start(args, fmt);
    vsnprintf(chain->problem, sizeof chain->problem, fmt, args);
    va_end(args);
}

struct entry {
    int64_t seq;
    struct mlo_digest prev, hash;
    const char *body;
    size_t size;
};

static void check_entry(struct mlo_chain *chain, const struct entry *e, const struct mlo_digest *computed)
{
    static const struct mlo_digest zero;
    int64_t expected = chain->last + 1;
    char text[MLO_DIGEST_TEXT_SIZE];
    if (e->seq > expected && !chain->entries)
        mlo_chain_bad(chain, expected, "entries up to %lld are missing", (long long)e->seq - 1);
    else if (e->seq > expected)
        mlo_chain_bad(chain, expected, "entry %lld is missing", (long long)expected);
    else if (e->seq < expected)
        mlo_chain_bad(chain, e->seq, "it does not belong before entry %lld", (long long)expected);
    else if (!chain->entries && !mlo_digest_eq(&e->prev, &zero))
        mlo_chain_bad(chain, e->seq, "the first entry continues from something that is not there");
    else if (chain->entries && !mlo_digest_eq(&e->prev, &chain->hash))
        mlo_chain_bad(chain, chain->last, "its hash is not the one that entry %lld continues from",
                      (long long)e->seq);
    if (!mlo_digest_eq(computed, &e->hash))
        mlo_chain_bad(chain, e->seq, "its content does not hash to its hash: it was changed");
    if (e->seq == chain->remembered_seq && strcmp(mlo_digest_text(&e->hash, text), chain->remembered) != 0)
        mlo_chain_bad(chain, e->seq, "it was %s when last verified here: the history was rewritten",
                      chain->remembered);
}

/* A digest in hex, followed by a space. One that is none on the server is "-": all zeros, which no hash is.
 */
static bool take_digest(const char **at, const char *end, struct mlo_digest *out)
{
    memset(out, 0, sizeof *out);
    if (end - *at > 2 && (*at)[0] == '-' && (*at)[1] == ' ') {
        *at += 2;
        return true;
    }
    char text[2 * MLO_DIGEST_SIZE + 1];
    if (end < *at || (size_t)(end - *at) < sizeof text || (*at)[sizeof text - 1] != ' ')
        return false;
    memcpy(text, *at, sizeof text - 1);
    text[sizeof text - 1] = '\0';
    *at += sizeof text;
    return mlo_digest_parse(text, out);
}

/* The next entry; false: what stands there is none. */
static bool take_entry(const char **at, const char *end, struct entry *out)
{
    char *after;
    const char *line = memchr(*at, '\n', (size_t)(end - *at));
    if (!line || !isdigit((unsigned char)**at)) /* no blanks, which would lead strtoll over the line's end */
        return false;
    out->seq = strtoll(*at, &after, 10);
    if (*after != ' ' || out->seq < 1 || out->seq == INT64_MAX)
        return false;
    *at = after + 1;
    if (!take_digest(at, line, &out->prev) || !take_digest(at, line, &out->hash))
        return false;
    if (!isdigit((unsigned char)**at))
        return false;
    unsigned long long size = strtoull(*at, &after, 10);
    if (after != line || size >= (unsigned long long)(end - line) - 1)
        return false;
    out->body = line + 1;
    out->size = (size_t)size;
    *at = out->body + size + 1;
    return (*at)[-1] == '\n';
}

enum mlo_status mlo_chain_check(struct mlo_chain *chain, const char *answer, size_t size, mlo_chain_fn *fn,
                                void *arg, struct mlo_error *err)
{
    const char *end = answer + size;
    struct entry e;
    struct mlo_digest computed;
    while (answer < end) {
        if (!take_entry(&answer, end, &e) || (chain->entries && e.seq <= chain->last))
            return mlo_error_set(err, MLO_EFORMAT, "the server's audit log is not in order behind entry %lld",
                                 (long long)chain->last);
        mlo_hasher_link(chain->hasher, &e.prev, e.seq, e.body, e.size, &computed);
        check_entry(chain, &e, &computed);
        enum mlo_status status = fn ? fn(arg, e.seq, e.body, e.size, &computed, err) : MLO_OK;
        if (status != MLO_OK)
            return status;
        chain->last = e.seq;
        chain->hash = e.hash;
        chain->entries++;
    }
    return MLO_OK;
}

void mlo_chain_end(struct mlo_chain *chain)
{
    if (chain->remembered_seq > chain->last)
        mlo_chain_bad(chain, chain->last + 1,
                      "the log ends at %lld, and had %lld entries when last verified here: it was cut",
                      (long long)chain->last, (long long)chain->remembered_seq);
}
