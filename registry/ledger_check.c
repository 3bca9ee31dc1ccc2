#include "registry/ledger_check.h"

#include <stdlib.h>
#include <string.h>

#include "registry/keys.h"
#include "registry/ledger.h"
#include "registry/ledger_commit.h"

/* What of a commit is compared with its audit entry, which may come long after it. */
struct seen_commit {
    int64_t n, audit_seq, time_s;
    struct mlo_git_id tree, parent;
    struct mlo_digest text, audit_hash;   /* of the commit without its signature; as named in its last line */
    int64_t generation, release, version; /* of the stage's file; -1: there is none */
    bool matched;
};

struct mlo_ledger_check {
    json_t *keys, *state;
    struct mlo_ledger_seen remembered, head;
    struct seen_commit *commits; /* by n, and so by audit_seq */
    size_t count, room;
    int64_t bad; /* the lowest; INT64_MAX: none */
    char problem[384];
};

static void found_bad(struct mlo_ledger_check *check, int64_t n, const char *fmt, ...) MLO_PRINTF(3, 4);
static void found_bad(struct mlo_ledger_check *check, int64_t n, const char *fmt, ...)
{
    va_list args;
    if (check->bad <= n)
        return;
    check->bad = n;
    va_start(args, fmt);
    vsnprintf(check->problem, sizeof check->problem, fmt, args);
    va_end(args);
}

/* --- keys ----------------------------------------------------------------------------------------- */

/* The published key that this is; NULL: none. */
static const json_t *known_key(const json_t *keys, const struct mlo_public_key *key)
{
    struct mlo_buf line = MLO_BUF_INIT;
    const json_t *found = NULL;
    json_t *item;
    size_t i;
    mlo_ssh_public_key(key, &line);
    json_array_foreach((json_t *)keys, i, item)
    {
        if (mlo_buf_ok(&line) && strcmp(mlo_json_str(item, "key", ""), mlo_buf_str(&line)) == 0)
            found = item;
    }
    mlo_buf_clear(&line);
    return found;
}

/* A key that another one vouches for must have that one's signature. */
static void check_keys(struct mlo_ledger_check *check)
{
    json_t *key;
    size_t i;
    json_array_foreach(check->keys, i, key)
    {
        const char *endorser = mlo_json_str(key, "endorser", NULL),
                   *text = mlo_json_str(key, "endorsement", "");
        struct mlo_buf line = MLO_BUF_INIT;
        struct mlo_public_key signer;
        if (!endorser)
            continue;
        mlo_buf_printf(&line, "%s\n", mlo_json_str(key, "key", ""));
        if (!mlo_ssh_verify(text, strlen(text), MLO_KEY_ENDORSED_AS, mlo_buf_str(&line), line.len, &signer) ||
            strcmp(mlo_json_str(known_key(check->keys, &signer), "fingerprint", ""), endorser) != 0)
            found_bad(check, 0, "the key %s is not signed by %s, as it says",
                      mlo_json_str(key, "fingerprint", "?"), endorser);
        mlo_buf_clear(&line);
    }
}

struct mlo_ledger_check *mlo_ledger_check_new(const json_t *keys, const struct mlo_ledger_seen *remembered)
{
    struct mlo_ledger_check *check = calloc(1, sizeof *check);
    if (!check)
        return NULL;
    check->bad = INT64_MAX;
    check->keys = json_incref((json_t *)keys);
    check->state = json_object();
    if (remembered)
        check->remembered = *remembered;
    check_keys(check);
    return check;
}

void mlo_ledger_check_free(struct mlo_ledger_check *check)
{
    if (!check)
        return;
    json_decref(check->keys);
    json_decref(check->state);
    free(check->commits);
    free(check);
}

/* --- commits -------------------------------------------------------------------------------------- */

/* The numbers in the file of a stage, if the commit has one. */
static void read_stage(const json_t *files, struct seen_commit *out)
{
    json_t *file;
    size_t i;
    out->generation = out->release = out->version = -1;
    json_array_foreach((json_t *)files, i, file)
    {
        const char *path = mlo_json_str(file, "path", "");
        json_t *text = json_object_get(file, "text"), *stage = NULL;
        if ((!mlo_str_starts(path, "production/") && !mlo_str_starts(path, "staging/")) ||
            !json_is_string(text))
            continue;
        stage = json_loadb(json_string_value(text), json_string_length(text), 0, NULL);
        out->generation = mlo_json_i64(stage, "generation", -1);
        out->release = mlo_json_i64(json_object_get(stage, "release"), "release", -1);
        out->version = mlo_json_i64(json_object_get(stage, "release"), "version", -1);
        json_decref(stage);
    }
}

static bool read_trailer(const char *text, size_t size, struct seen_commit *out)
{
    static const char NAME[] = "\nAudit: ";
    char number[24], hash[MLO_DIGEST_TEXT_SIZE];
    size_t at = size;
    int64_t seq;
    if (size < sizeof NAME || text[size - 1] != '\n')
        return false;
    for (at = size - 1; at > 0 && text[at - 1] != '\n'; at--)
        ;
    if (at == 0 || strncmp(text + at - 1, NAME, sizeof NAME - 1) != 0)
        return false;
    return sscanf(text + at - 1 + sizeof NAME - 1, "%23[0-9] %71[a-z0-9:]", number, hash) == 2 &&
           mlo_str_to_i64(number, &seq) && seq == out->audit_seq && mlo_digest_parse(hash, &out->audit_hash);
}

/* Signature, key, tree and parent of one commit. */
static void check_text(struct mlo_ledger_check *check, const char *text, size_t size, struct seen_commit *out)
{
    struct mlo_buf bare = MLO_BUF_INIT, armored = MLO_BUF_INIT, begin = MLO_BUF_INIT;
    struct mlo_public_key signer;
    char id[MLO_GIT_ID_TEXT_SIZE], fingerprint[MLO_SSH_FINGERPRINT_SIZE];
    if (!mlo_ledger_split(text, size, &bare, &armored) ||
        !mlo_ssh_verify(mlo_buf_str(&armored), armored.len, MLO_LEDGER_SIGNED_AS, mlo_buf_str(&bare),
                        bare.len, &signer)) {
        found_bad(check, out->n, "its signature does not hold");
        goto out;
    }
    out->time_s = mlo_ledger_commit_time(mlo_buf_str(&bare));
    const json_t *key = known_key(check->keys, &signer);
    if (!key)
        found_bad(check, out->n, "it is signed by %s, which is no key of this installation",
                  mlo_ssh_fingerprint(&signer, fingerprint));
    else if (!mlo_keys_valid_at(key, out->time_s))
        found_bad(check, out->n, "it is signed by %s at a time at which that key could not sign",
                  mlo_ssh_fingerprint(&signer, fingerprint));
    mlo_buf_printf(&begin, "tree %s\n", mlo_git_id_text(&out->tree, id));
    if (check->count)
        mlo_buf_printf(&begin, "parent %s\n", mlo_git_id_text(&out->parent, id));
    mlo_buf_puts(&begin, "author ");
    if (!mlo_str_starts(mlo_buf_str(&bare), mlo_buf_str(&begin)))
        found_bad(check, out->n,
                  "its files are not those that it was signed for, or it does not follow the one "
                  "before");
    if (!read_trailer(mlo_buf_str(&bare), bare.len, out))
        found_bad(check, out->n, "it does not name its audit entry");
    mlo_digest_of(mlo_buf_str(&bare), bare.len, &out->text);
out:
    mlo_buf_clear(&bare);
    mlo_buf_clear(&armored);
    mlo_buf_clear(&begin);
}

static enum mlo_status push(struct mlo_ledger_check *check, const struct seen_commit *commit,
                            struct mlo_error *err)
{
    if (check->count == check->room) {
        size_t room = check->room ? 2 * check->room : 64;
        struct seen_commit *more = realloc(check->commits, room * sizeof *more);
        if (!more)
            return mlo_error_nomem(err);
        check->commits = more;
        check->room = room;
    }
    check->commits[check->count++] = *commit;
    return MLO_OK;
}

enum mlo_status mlo_ledger_check_commit(struct mlo_ledger_check *check, const json_t *row,
                                        struct mlo_error *err)
{
    struct seen_commit commit = {.n = mlo_json_i64(row, "n", 0),
                                 .audit_seq = mlo_json_i64(row, "audit_seq", 0)};
    const json_t *text = json_object_get(row, "commit"), *files = json_object_get(row, "files");
    const struct seen_commit *last = check->count ? &check->commits[check->count - 1] : NULL;
    struct mlo_error why = {0};
    struct mlo_git_id id, said;
    if (!json_is_string(text) || !json_is_array(files))
        return mlo_error_set(err, MLO_EFORMAT, "a commit of the ledger came without its text or files");
    if (commit.n != (last ? last->n : 0) + 1) {
        found_bad(check, (last ? last->n : 0) + 1, "it is missing: commit %lld follows", (long long)commit.n);
        return MLO_OK; /* nothing after it can be told */
    }
    if (check->bad < commit.n)
        return MLO_OK;
    if (last && commit.audit_seq <= last->audit_seq)
        found_bad(check, commit.n, "it is not in the order of the audit log");
    mlo_git_object_id("commit", json_string_value(text), json_string_length(text), &id);
    if (!mlo_git_id_parse(mlo_json_str(row, "id", ""), &said) || !mlo_git_id_eq(&id, &said))
        found_bad(check, commit.n, "its bytes do not hash to its id: it was changed");
    if (mlo_ledger_apply(check->state, files, NULL, NULL, &why) != MLO_OK ||
        mlo_ledger_tree(check->state, NULL, NULL, &commit.tree, &why) != MLO_OK) {
        found_bad(check, commit.n, "its files cannot be: %s", why.message);
        return MLO_OK;
    }
    commit.parent = check->head.id;
    check_text(check, json_string_value(text), json_string_length(text), &commit);
    read_stage(files, &commit);
    if (check->remembered.n == commit.n && !mlo_git_id_eq(&check->remembered.id, &id))
        found_bad(check, commit.n, "it is not the commit that was seen before: the ledger was rewritten");
    if (check->bad <= commit.n)
        return MLO_OK;
    check->head.n = commit.n;
    check->head.id = id;
    return push(check, &commit, err);
}

/* --- against the audit log ---------------------------------------------------------------------- */

static int by_seq(const void *key, const void *commit)
{
    int64_t seq = *(const int64_t *)key, other = ((const struct seen_commit *)commit)->audit_seq;
    return seq < other ? -1 : seq > other;
}

static struct seen_commit *find(const struct mlo_ledger_check *check, int64_t seq)
{
    return check->count ? bsearch(&seq, check->commits, check->count, sizeof *check->commits, by_seq) : NULL;
}

bool mlo_ledger_check_wants(const struct mlo_ledger_check *check, int64_t seq, const char *body, size_t size)
{
    if (find(check, seq))
        return true;
    for (const char *const *action = mlo_ledger_actions; *action; action++)
        if (memmem(body, size, *action, strlen(*action)))
            return true;
    return false;
}

static enum mlo_status check_pair(struct mlo_ledger_check *check, struct seen_commit *commit,
                                  const struct mlo_digest *hash, const json_t *body, struct mlo_error *err)
{
    const struct mlo_ledger_commit expected = {.tree = commit->tree,
                                               .parent = commit->n > 1 ? &commit->parent : NULL,
                                               .audit_seq = commit->audit_seq,
                                               .audit_hash = *hash,
                                               .audit = body,
                                               .time_s = commit->time_s};
    const json_t *after = json_object_get(body, "after");
    struct mlo_buf text = MLO_BUF_INIT;
    struct mlo_error why = {0};
    struct mlo_digest digest = {{0}};
    commit->matched = true;
    if (!mlo_digest_eq(hash, &commit->audit_hash)) {
        found_bad(check, commit->n, "it names another hash for audit entry %lld: the audit log was rewritten",
                  (long long)commit->audit_seq);
        return MLO_OK;
    }
    enum mlo_status status = mlo_ledger_compose(&expected, &text, &why);
    if (status == MLO_ENOMEM)
        return mlo_error_nomem(err);
    mlo_digest_of(mlo_buf_str(&text), text.len, &digest);
    mlo_buf_clear(&text);
    if (status != MLO_OK || !mlo_digest_eq(&digest, &commit->text))
        found_bad(check, commit->n, "it does not say what audit entry %lld says",
                  (long long)commit->audit_seq);
    if (mlo_str_starts(mlo_json_str(body, "action", ""), "stage.") &&
        (mlo_json_i64(after, "generation", -2) != commit->generation ||
         mlo_json_i64(after, "release", -2) != commit->release ||
         mlo_json_i64(after, "version", -2) != commit->version))
        found_bad(check, commit->n, "its file is not of the release that audit entry %lld names",
                  (long long)commit->audit_seq);
    return MLO_OK;
}

enum mlo_status mlo_ledger_check_entry(struct mlo_ledger_check *check, int64_t seq,
                                       const struct mlo_digest *hash, const json_t *body, int64_t written_to,
                                       struct mlo_error *err)
{
    struct seen_commit *commit = find(check, seq);
    const char *action = mlo_json_str(body, "action", "");
    if (commit)
        return check_pair(check, commit, hash, body, err);
    /* what happened before there was a ledger has none */
    if (check->count && seq > check->commits[0].audit_seq && seq <= written_to && mlo_ledger_action(action) &&
        check->bad == INT64_MAX) {
        size_t before = 0;
        while (before < check->count && check->commits[before].audit_seq < seq)
            before++;
        found_bad(check, (int64_t)before + 1, "audit entry %lld (%s) has no commit where one belongs",
                  (long long)seq, action);
    }
    return MLO_OK;
}

void mlo_ledger_check_end(struct mlo_ledger_check *check, struct mlo_ledger_result *out)
{
    for (size_t i = 0; i < check->count; i++)
        if (!check->commits[i].matched)
            found_bad(check, check->commits[i].n, "it names audit entry %lld, which is not there",
                      (long long)check->commits[i].audit_seq);
    if (check->remembered.n > check->head.n)
        found_bad(check, check->head.n + 1,
                  "the ledger ends at commit %lld, but commit %lld was seen before: its tail "
                  "was cut",
                  (long long)check->head.n, (long long)check->remembered.n);
    memset(out, 0, sizeof *out);
    out->intact = check->bad == INT64_MAX;
    out->commits = (int64_t)check->count;
    out->head = check->head;
    out->bad_commit = out->intact ? 0 : check->bad;
    snprintf(out->problem, sizeof out->problem, "%s", check->problem);
}
