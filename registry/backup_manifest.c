/* Manifests of backups: writing, signing, finding, checking. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/ssh_sign.h"
#include "registry/backup_impl.h"
#include "registry/keys.h"
#include "registry/ledger.h"

enum { MANIFEST_MAX = 256 << 20, SIGNATURE_MAX = 1 << 16 };

static const char MANIFEST[] = "manifest.json", SIGNATURE[] = "manifest.json.sig";

void mlo_backup_snapshot_clear(struct mlo_backup_snapshot *snapshot)
{
    free(snapshot->name);
    free(snapshot->path);
    json_decref(snapshot->manifest);
    memset(snapshot, 0, sizeof *snapshot);
}

/* --- writing ------------------------------------------------------------------------------------- */

json_t *mlo_backup_file(const char *path, const char *name, struct mlo_error *err)
{
    struct mlo_digest digest;
    uint64_t size;
    char text[MLO_DIGEST_TEXT_SIZE], *file = mlo_fs_join(path, name, NULL);
    json_t *out = NULL;
    if (!file) {
        (void)mlo_error_nomem(err);
        return NULL;
    }
    if (mlo_digest_of_file(file, &digest, &size, err) == MLO_OK) {
        out = json_pack("{s:s, s:s, s:I}", "file", name, "digest", mlo_digest_text(&digest, text), "size",
                        (json_int_t)size);
        if (!out)
            (void)mlo_error_nomem(err);
    }
    free(file);
    return out;
}

enum mlo_status mlo_backup_manifest_write(const char *path, const json_t *manifest,
                                          const struct mlo_sign_key *key, struct mlo_digest *digest,
                                          struct mlo_error *err)
{
    struct mlo_buf text = MLO_BUF_INIT, armored = MLO_BUF_INIT, line = MLO_BUF_INIT;
    char *file = mlo_fs_join(path, MANIFEST, NULL), *sig = mlo_fs_join(path, SIGNATURE, NULL);
    json_t *whole = json_copy((json_t *)manifest);
    enum mlo_status status = file && sig && whole ? MLO_OK : mlo_error_nomem(err);
    MLO_TRY(status);
    if (key) {
        mlo_ssh_public_key(mlo_sign_key_public(key), &line);
        json_object_set_new(whole, "signed_by", json_string(mlo_buf_str(&line)));
    }
    mlo_ledger_json(whole, &text);
    if (!mlo_buf_ok(&text) || !mlo_buf_ok(&line)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    mlo_digest_of(mlo_buf_str(&text), text.len, digest);
    MLO_TRY(mlo_fs_write_atomic(file, mlo_buf_str(&text), text.len, err));
    if (key) {
        MLO_TRY(mlo_ssh_sign(key, MLO_BACKUP_SIGNED_AS, mlo_buf_str(&text), text.len, &armored, err));
        MLO_TRY(mlo_fs_write_atomic(sig, mlo_buf_str(&armored), armored.len, err));
    }
out:
    json_decref(whole);
    mlo_buf_clear(&text);
    mlo_buf_clear(&armored);
    mlo_buf_clear(&line);
    free(file);
    free(sig);
    return status;
}

/* --- finding and reading ------------------------------------------------------------------------- */

/* The last one by name, which is its time. NULL: none. */
static char *newest(const char *snapshots)
{
    DIR *dir = opendir(snapshots);
    struct dirent *entry;
    char *best = NULL;
    while (dir && (entry = readdir(dir))) {
        if (entry->d_name[0] == '.' || (best && strcmp(entry->d_name, best) < 0))
            continue;
        free(best);
        best = strdup(entry->d_name);
    }
    if (dir)
        closedir(dir);
    return best;
}

static enum mlo_status check_signature(struct mlo_backup_snapshot *s, const struct mlo_buf *text,
                                       const char *sig, const char *trust, struct mlo_error *err)
{
    struct mlo_buf armored = MLO_BUF_INIT, line = MLO_BUF_INIT;
    char fingerprint[MLO_SSH_FINGERPRINT_SIZE] = "";
    const char *said = mlo_json_str(s->manifest, "signed_by", NULL);
    enum mlo_status status = MLO_OK;
    if (mlo_fs_exists(sig)) {
        MLO_TRY(mlo_fs_read(sig, SIGNATURE_MAX, &armored, err));
        s->is_signed = mlo_ssh_verify(mlo_buf_str(&armored), armored.len, MLO_BACKUP_SIGNED_AS,
                                      mlo_buf_str(text), text->len, &s->signer);
        if (s->is_signed) {
            mlo_ssh_public_key(&s->signer, &line);
            mlo_ssh_fingerprint(&s->signer, fingerprint);
        }
        if (!s->is_signed || !said || strcmp(said, mlo_buf_str(&line)) != 0) {
            status = mlo_error_set(err, MLO_EDIGEST,
                                   "the manifest is not what was signed: it, or its "
                                   "signature, was changed");
            goto out;
        }
    } else if (said) {
        status =
            mlo_error_set(err, MLO_EDIGEST, "the manifest says that it is signed, and its signature is gone");
        goto out;
    }
    if (trust && strcmp(trust, fingerprint) != 0) {
        status = mlo_error_set(err, MLO_EDIGEST, "the backup is %s%s, not signed by %.80s",
                               s->is_signed ? "signed by " : "not signed", fingerprint, trust);
        mlo_error_hint(err, "the fingerprints of an installation's keys: mlopt keys");
    }
out:
    mlo_buf_clear(&armored);
    mlo_buf_clear(&line);
    return status;
}

enum mlo_status mlo_backup_snapshot_open(const struct mlo_backup_check *check,
                                         struct mlo_backup_snapshot *out, struct mlo_error *err)
{
    struct mlo_buf text = MLO_BUF_INIT;
    char *snapshots = mlo_fs_join(check->dir, "snapshots", NULL), *file = NULL, *sig = NULL;
    enum mlo_status status = snapshots ? MLO_OK : mlo_error_nomem(err);
    memset(out, 0, sizeof *out);
    MLO_TRY(status);
    if (check->snapshot && (strchr(check->snapshot, '/') || check->snapshot[0] == '.')) {
        status = mlo_error_set(err, MLO_EINVAL, "'%.100s' is no name of a snapshot", check->snapshot);
        goto out;
    }
    out->name = check->snapshot ? strdup(check->snapshot) : newest(snapshots);
    if (!out->name) {
        status = mlo_error_set(err, MLO_ENOTFOUND, "there is no backup in %s", check->dir);
        mlo_error_hint(err, "a backup is made by: mlopt backup DIR --data DATA");
        goto out;
    }
    out->path = mlo_fs_join(snapshots, out->name, NULL);
    file = out->path ? mlo_fs_join(out->path, MANIFEST, NULL) : NULL;
    sig = out->path ? mlo_fs_join(out->path, SIGNATURE, NULL) : NULL;
    if (!file || !sig) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_fs_read(file, MANIFEST_MAX, &text, err));
    mlo_digest_of(mlo_buf_str(&text), text.len, &out->digest);
    status = mlo_json_parse(mlo_buf_str(&text), text.len, "the manifest", &out->manifest, err);
    if (status == MLO_OK && strcmp(mlo_json_str(out->manifest, "format", ""), MLO_BACKUP_FORMAT) != 0)
        status = mlo_error_set(err, MLO_EFORMAT, "the manifest is of no format that this program knows (%s)",
                               mlo_json_str(out->manifest, "format", "none"));
    if (status == MLO_OK)
        status = check_signature(out, &text, sig, check->trust, err);
    if (status != MLO_OK)
        mlo_error_where(err, "%s", file);
out:
    mlo_buf_clear(&text);
    free(snapshots);
    free(file);
    free(sig);
    if (status != MLO_OK)
        mlo_backup_snapshot_clear(out);
    return status;
}

enum mlo_status mlo_backup_file_check(const struct mlo_backup_snapshot *snapshot, const json_t *file,
                                      struct mlo_error *err)
{
    const char *name = mlo_json_str(file, "file", "");
    struct mlo_digest wanted, computed;
    uint64_t size;
    char a[MLO_DIGEST_TEXT_SIZE], b[MLO_DIGEST_TEXT_SIZE], *path;
    if (!*name || name[0] == '.' || strstr(name, "..") ||
        !mlo_digest_parse(mlo_json_str(file, "digest", ""), &wanted))
        return mlo_error_set(err, MLO_EFORMAT, "the manifest names a file without name or digest");
    path = mlo_fs_join(snapshot->path, name, NULL);
    if (!path)
        return mlo_error_nomem(err);
    enum mlo_status status = mlo_digest_of_file(path, &computed, &size, err);
    if (status == MLO_OK && !mlo_digest_eq(&wanted, &computed))
        status = mlo_error_set(err, MLO_EDIGEST, "%s hashes to %s, not to %s: it was changed", name,
                               mlo_digest_text(&computed, a), mlo_digest_text(&wanted, b));
    if (status != MLO_OK)
        mlo_error_where(err, "%s", path);
    free(path);
    return status;
}

/* --- blobs --------------------------------------------------------------------------------------- */

enum mlo_status mlo_backup_each_blob(const char *list_path, mlo_backup_blob_fn *fn, void *arg,
                                     struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    char *line = NULL;
    size_t room = 0;
    FILE *list = fopen(list_path, "re");
    if (!list)
        return mlo_error_errno(err, errno, "cannot read %s", list_path);
    for (long number = 1; status == MLO_OK; number++) {
        struct mlo_digest digest;
        int64_t size = -1;
        ssize_t got = getline(&line, &room, list);
        if (got < 0)
            break;
        char *space = strchr(line, ' ');
        if (got > 1 && line[got - 1] == '\n')
            line[got - 1] = '\0';
        if (space)
            *space = '\0';
        if (!space || !mlo_digest_parse(line, &digest) || !mlo_str_to_i64(space + 1, &size) || size < 0) {
            status = mlo_error_set(err, MLO_EFORMAT, "line %ld of %s is no blob", number, list_path);
            break;
        }
        status = fn(arg, &digest, (uint64_t)size, err);
    }
    if (status == MLO_OK && ferror(list))
        status = mlo_error_errno(err, errno, "cannot read %s", list_path);
    free(line);
    fclose(list);
    return status;
}

enum mlo_status mlo_backup_blobs_open(const char *dir, struct mlo_blob_store **out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf url = MLO_BUF_INIT;
    char *absolute = realpath(dir, NULL);
    *out = NULL;
    if (!absolute) {
        status = mlo_error_errno(err, errno, "cannot use %s", dir);
        goto out;
    }
    mlo_buf_printf(&url, "file:%s/blobs", absolute);
    status = mlo_buf_ok(&url) ? mlo_blob_store_open(mlo_buf_str(&url), out, err) : mlo_error_nomem(err);
out:
    mlo_buf_clear(&url);
    free(absolute);
    return status;
}

void mlo_backup_progress_add(struct mlo_backup_progress *progress, uint64_t bytes)
{
    char done[32], total[32], text[80];
    progress->done += bytes;
    if (!progress->fn)
        return;
    snprintf(text, sizeof text, "%s of %s", mlo_str_size(progress->done, done),
             mlo_str_size(progress->total, total));
    progress->fn(progress->arg, progress->total ? (double)progress->done / (double)progress->total : 1, text);
}

/* --- the whole of it ------------------------------------------------------------------------------ */

enum { PROBLEMS_MAX = 200 };

struct verify {
    struct mlo_blob_store *blobs;
    struct mlo_backup_progress progress;
    json_t *problems;
    int64_t count;
    uint64_t bytes;
    struct mlo_error first;
};

static void note(struct verify *v, const struct mlo_error *problem)
{
    if (json_array_size(v->problems) == 0)
        v->first = *problem;
    if (json_array_size(v->problems) < PROBLEMS_MAX)
        json_array_append_new(v->problems, json_string(problem->message));
}

static enum mlo_status verify_blob(void *arg, const struct mlo_digest *digest, uint64_t size_bytes,
                                   struct mlo_error *err)
{
    struct verify *v = arg;
    struct mlo_error problem = {0};
    char text[MLO_DIGEST_TEXT_SIZE];
    uint64_t size = 0;
    enum mlo_status status = mlo_blob_check(v->blobs, digest, &size, &problem);
    MLO_UNUSED(err);
    if (status == MLO_ENOTFOUND)
        (void)mlo_error_set(&problem, MLO_EDIGEST, "blob %s is not in the backup",
                            mlo_digest_text(digest, text));
    else if (status != MLO_OK)
        mlo_error_prefix(&problem, "blob %s", mlo_digest_text(digest, text));
    else if (size != size_bytes)
        status = mlo_error_set(&problem, MLO_EDIGEST, "blob %s has %llu bytes, and the database says %llu",
                               mlo_digest_text(digest, text), (unsigned long long)size,
                               (unsigned long long)size_bytes);
    if (status != MLO_OK)
        note(v, &problem);
    v->count++;
    v->bytes += size_bytes;
    mlo_backup_progress_add(&v->progress, size_bytes);
    return MLO_OK;
}

enum mlo_status mlo_backup_verify(const struct mlo_backup_check *check, json_t **report,
                                  struct mlo_error *err)
{
    struct mlo_backup_snapshot s;
    struct mlo_error problem = {0};
    struct verify v = {.progress = {check->on_progress, check->progress_arg, 0, 0}};
    json_t *key;
    size_t i;
    char text[MLO_DIGEST_TEXT_SIZE], fingerprint[MLO_SSH_FINGERPRINT_SIZE], *list = NULL;
    *report = NULL;
    enum mlo_status status = mlo_backup_snapshot_open(check, &s, err);
    if (status != MLO_OK)
        return status;
    const json_t *blobs = json_object_get(s.manifest, "blobs");
    v.problems = json_array();
    v.progress.total = (uint64_t)mlo_json_i64(blobs, "bytes", 0);
    list = mlo_fs_join(s.path, "blobs", NULL);
    if (!v.problems || !list) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (mlo_backup_file_check(&s, json_object_get(s.manifest, "database"), &problem) != MLO_OK)
        note(&v, &problem);
    json_array_foreach(json_object_get(s.manifest, "keys"), i, key)
    {
        if (mlo_backup_file_check(&s, key, &problem) != MLO_OK)
            note(&v, &problem);
    }
    if (mlo_backup_file_check(&s, blobs, &problem) != MLO_OK) {
        note(&v, &problem); /* a list that was changed tells nothing of the blobs */
    } else {
        MLO_TRY(mlo_backup_blobs_open(check->dir, &v.blobs, err));
        MLO_TRY(mlo_backup_each_blob(list, verify_blob, &v, err));
    }
    *report = json_pack("{s:s, s:s, s:s, s:s?, s:I, s:I, s:O, s:O?}", "snapshot", s.name, "digest",
                        mlo_digest_text(&s.digest, text), "made_at", mlo_json_str(s.manifest, "made_at", ""),
                        "signed_by", s.is_signed ? mlo_ssh_fingerprint(&s.signer, fingerprint) : NULL,
                        "blobs", (json_int_t)v.count, "bytes", (json_int_t)v.bytes, "problems", v.problems,
                        "missing", json_object_get(s.manifest, "missing"));
    if (!*report) {
        status = mlo_error_nomem(err);
    } else if (json_array_size(v.problems)) {
        status = mlo_error_set(err, MLO_EDIGEST, "%s", v.first.message);
        if (*v.first.where)
            mlo_error_where(err, "%s", v.first.where);
        mlo_error_hint(err,
                       "a damaged blob is copied again by: mlopt backup DIR --check; other files are made "
                       "by the next backup");
    }
out:
    mlo_blob_store_close(v.blobs);
    json_decref(v.problems);
    mlo_backup_snapshot_clear(&s);
    free(list);
    return status;
}
