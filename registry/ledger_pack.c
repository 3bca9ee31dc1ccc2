/* Packs in the repository of a ledger: runs of commits, so that a clone over plain HTTP, which asks for each
 * loose object by a request of its own, asks for few files. What is packed follows from how many commits
 * there are: the ranges of FANOUT^k * RUN commits that fit, the largest first, so that packs are few and each
 * object is written into O(log) of them. A range's bytes follow from its commits.
 *
 * Crashes and clones that run meanwhile: a pack is made beside, synced, and renamed into place, .pack before
 * .idx; then it is listed (the file `packs`, from which objects/info/packs is answered); what it replaces,
 * loose or packs, is removed when it has been listed for longer than a clone takes that asked for the list
 * before, and its bytes are found to be what they were: a damaged one is made again from what it replaces. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <git2.h>
#include <git2/sys/odb_backend.h>

#include "base/git_file.h"
#include "registry/ledger_impl.h"

enum { RUN = 32, FANOUT = 8, TRAILER = 20 };

static const char LIST[] = "packs";

/* What became of a pack: its objects are loose too; only in packs; another one holds them, and it goes. */
static const char NEW[] = "new", ALONE[] = "alone", RETIRED[] = "retired";

struct packing {
    struct mlo_ledger *ledger;
    struct mlo_db_conn *conn;
    int64_t project_id;
    git_repository *repo;
    const char *path;
    json_t *packs; /* [{from, to, name, state, since}]: commits behind `from`, to `to`; since: seconds */
    bool changed;
};

static enum mlo_status failed(struct mlo_error *err, const char *what, const char *path)
{
    const git_error *e = git_error_last();
    return mlo_error_set(err, MLO_EIO, "%s %s: %s", what, path,
                         e && e->message ? e->message : "libgit2 failed");
}

static int64_t now_s(void)
{
    return mlo_clock_utc_us() / 1000000;
}

static bool is(const json_t *pack, const char *state)
{
    return strcmp(mlo_json_str(pack, "state", ""), state) == 0;
}

/* "REPOSITORY/objects/pack/pack-NAME.SUFFIX"; yours. */
static char *file_of(const char *path, const json_t *pack, const char *suffix)
{
    struct mlo_buf file = MLO_BUF_INIT;
    mlo_buf_printf(&file, "%s/objects/pack/pack-%s.%s", path, mlo_json_str(pack, "name", ""), suffix);
    return mlo_buf_take(&file);
}

static bool has_files(const char *path, const json_t *pack)
{
    char *data = file_of(path, pack, "pack"), *index = file_of(path, pack, "idx");
    bool there = data && index && mlo_fs_size(data) > TRAILER && mlo_fs_size(index) > TRAILER;
    free(data);
    free(index);
    return there;
}

/* --- the list ------------------------------------------------------------------------------------ */

/* *out is yours; an empty array where nothing was packed yet. False: it cannot be read. */
static bool load(const char *path, json_t **out)
{
    struct mlo_error ignored = {0};
    char *file = mlo_fs_join(path, LIST, NULL);
    *out = NULL;
    if (file && !mlo_fs_exists(file))
        *out = json_array();
    else if (file && mlo_json_load_file(file, out, &ignored) == MLO_OK && !json_is_array(*out)) {
        json_decref(*out);
        *out = NULL;
    }
    free(file);
    return *out;
}

static enum mlo_status save(struct packing *p, struct mlo_error *err)
{
    struct mlo_buf text = MLO_BUF_INIT;
    char *file = mlo_fs_join(p->path, LIST, NULL);
    mlo_json_canonical(p->packs, &text);
    enum mlo_status status = file && mlo_buf_ok(&text) ? mlo_fs_write_atomic(file, text.data, text.len, err)
                                                       : mlo_error_nomem(err);
    mlo_buf_clear(&text);
    free(file);
    p->changed = false;
    return status;
}

bool mlo_ledger_packs_usable(const char *path)
{
    json_t *packs, *pack;
    size_t i;
    bool ok = load(path, &packs);
    json_array_foreach(packs, i, pack) ok = ok && (is(pack, RETIRED) || has_files(path, pack));
    json_decref(packs);
    return ok;
}

void mlo_ledger_packs_list(const char *path, struct mlo_buf *out)
{
    json_t *packs, *pack;
    size_t i;
    load(path, &packs);
    json_array_foreach(packs, i, pack)
    {
        if (!is(pack, RETIRED) && has_files(path, pack))
            mlo_buf_printf(out, "P pack-%s.pack\n", mlo_json_str(pack, "name", ""));
    }
    mlo_buf_putc(out, '\n');
    json_decref(packs);
}

/* --- making one ---------------------------------------------------------------------------------- */

static enum mlo_status commit_id(struct packing *p, int64_t n, git_oid *out, struct mlo_error *err)
{
    struct mlo_rows rows = {0};
    struct mlo_buf id = MLO_BUF_INIT;
    enum mlo_status status = mlo_ledger_rows_after(p->conn, p->project_id, n - 1, 1, &rows, err);
    if (status == MLO_OK && mlo_rows_count(&rows) > 0)
        mlo_rows_bytes(&rows, 0, LEDGER_ROW_ID, &id);
    if (status == MLO_OK && id.len != sizeof out->id)
        status = mlo_error_set(err, MLO_ENOTFOUND, "the ledger has no commit %lld", (long long)n);
    if (status == MLO_OK)
        memcpy(out->id, id.data, sizeof out->id);
    mlo_buf_clear(&id);
    mlo_rows_clear(&rows);
    return status;
}

/* Into `folder`, as libgit2 names it; *name (GIT_OID_HEXSZ + 1) is that. One thread: what compares with what,
 * and so the bytes, would else depend on their number. */
static enum mlo_status write_pack(struct packing *p, int64_t from, int64_t to, const char *folder, char *name,
                                  struct mlo_error *err)
{
    git_packbuilder *builder = NULL;
    git_revwalk *walk = NULL;
    git_oid first, last;
    enum mlo_status status;
    MLO_TRY(commit_id(p, to, &last, err));
    if (from)
        MLO_TRY(commit_id(p, from, &first, err));
    if (git_packbuilder_new(&builder, p->repo) != 0 || git_revwalk_new(&walk, p->repo) != 0 ||
        git_revwalk_sorting(walk, GIT_SORT_TOPOLOGICAL) != 0 || git_revwalk_push(walk, &last) != 0 ||
        (from && git_revwalk_hide(walk, &first) != 0)) {
        status = failed(err, "cannot walk through", p->path);
        goto out;
    }
    git_packbuilder_set_threads(builder, 1);
    if (git_packbuilder_insert_walk(builder, walk) != 0 ||
        git_packbuilder_write(builder, folder, 0644, NULL, NULL) != 0)
        status = failed(err, "cannot pack", p->path);
    else
        snprintf(name, GIT_OID_HEXSZ + 1, "%s", git_packbuilder_name(builder));
out:
    git_revwalk_free(walk);
    git_packbuilder_free(builder);
    return status;
}

/* The sum at a pack's end, by which stock git names it. */
static enum mlo_status trailer(const char *file, char *name, struct mlo_error *err)
{
    git_oid sum;
    size_t got = 0;
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || lseek(fd, -(off_t)TRAILER, SEEK_END) < 0 || !mlo_fs_read_full(fd, sum.id, TRAILER, &got) ||
        got != TRAILER || fsync(fd) != 0) {
        int e = errno;
        if (fd >= 0)
            close(fd);
        return mlo_error_errno(err, e, "cannot read the pack %s", file);
    }
    close(fd);
    git_oid_tostr(name, GIT_OID_HEXSZ + 1, &sum);
    return MLO_OK;
}

static enum mlo_status sync_path(const char *path, struct mlo_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int e = fd < 0 || fsync(fd) != 0 ? errno : 0;
    if (fd >= 0)
        close(fd);
    return e ? mlo_error_errno(err, e, "cannot sync %s", path) : MLO_OK;
}

static enum mlo_status put_in_place(struct packing *p, const char *folder, const char *made,
                                    const json_t *pack, struct mlo_error *err)
{
    static const char *const suffixes[] = {"pack", "idx"};
    char *to = mlo_fs_join(p->path, "objects", "pack", NULL);
    enum mlo_status status = to ? MLO_OK : mlo_error_nomem(err);
    for (size_t i = 0; i < MLO_COUNT(suffixes) && status == MLO_OK; i++) {
        struct mlo_buf from = MLO_BUF_INIT;
        mlo_buf_printf(&from, "%s/pack-%s.%s", folder, made, suffixes[i]);
        char *file = file_of(p->path, pack, suffixes[i]);
        if (!file || !mlo_buf_ok(&from))
            status = mlo_error_nomem(err);
        if (status == MLO_OK)
            status = sync_path(mlo_buf_str(&from), err);
        if (status == MLO_OK && rename(mlo_buf_str(&from), file) != 0)
            status = mlo_error_errno(err, errno, "cannot put the pack at %s", file);
        mlo_ledger_step(p->ledger, suffixes[i]);
        mlo_buf_clear(&from);
        free(file);
    }
    if (status == MLO_OK)
        status = sync_path(to, err);
    free(to);
    return status;
}

static enum mlo_status make(struct packing *p, int64_t from, int64_t to, struct mlo_error *err)
{
    char made[GIT_OID_HEXSZ + 1], name[GIT_OID_HEXSZ + 1];
    struct mlo_buf file = MLO_BUF_INIT;
    char *folder = mlo_fs_join(p->path, "packing", NULL);
    json_t *pack = NULL;
    enum mlo_status status = folder ? MLO_OK : mlo_error_nomem(err);
    MLO_TRY(status);
    mlo_fs_remove_tree(folder); /* of one that was killed */
    MLO_TRY(mlo_fs_mkdirs(folder, err));
    MLO_TRY(write_pack(p, from, to, folder, made, err));
    mlo_ledger_step(p->ledger, "a pack beside");
    mlo_buf_printf(&file, "%s/pack-%s.pack", folder, made);
    MLO_TRY(mlo_buf_ok(&file) ? trailer(mlo_buf_str(&file), name, err) : mlo_error_nomem(err));
    pack = json_pack("{s:I, s:I, s:s, s:s, s:I}", "from", (json_int_t)from, "to", (json_int_t)to, "name",
                     name, "state", NEW, "since", (json_int_t)now_s());
    if (!pack) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(put_in_place(p, folder, made, pack, err));
    if (json_array_append(p->packs, pack) != 0)
        status = mlo_error_nomem(err);
    p->changed = true;
out:
    if (folder)
        mlo_fs_remove_tree(folder);
    json_decref(pack);
    mlo_buf_clear(&file);
    free(folder);
    return status;
}

/* --- which there are ----------------------------------------------------------------------------- */

static json_t *find(const struct packing *p, int64_t from, int64_t to)
{
    json_t *pack;
    size_t i;
    json_array_foreach(p->packs, i, pack)
    {
        if (mlo_json_i64(pack, "from", -1) == from && mlo_json_i64(pack, "to", -1) == to &&
            !is(pack, RETIRED))
            return pack;
    }
    return NULL;
}

static bool listed(const struct packing *p, const char *file)
{
    json_t *pack;
    size_t i;
    json_array_foreach(p->packs, i, pack)
    {
        if (strncmp(file + strlen("pack-"), mlo_json_str(pack, "name", "?"), GIT_OID_HEXSZ) == 0)
            return true;
    }
    return false;
}

/* Files in place that were never listed: of one that was killed. */
static void remove_strays(struct packing *p)
{
    char *path = mlo_fs_join(p->path, "objects", "pack", NULL);
    DIR *folder = path ? opendir(path) : NULL;
    struct dirent *entry;
    while (folder && (entry = readdir(folder)))
        if (mlo_str_starts(entry->d_name, "pack-") && !listed(p, entry->d_name))
            unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder)
        closedir(folder);
    free(path);
}

static enum mlo_status make_missing(struct packing *p, int64_t n, struct mlo_error *err)
{
    json_t *pack;
    size_t i;
    int64_t size = RUN, at = 0;
    while (size <= n / FANOUT)
        size *= FANOUT;
    for (; size >= RUN; size /= FANOUT)
        for (; at + size <= n; at += size) {
            if (find(p, at, at + size))
                continue;
            if (!p->changed)
                remove_strays(p);
            enum mlo_status status = make(p, at, at + size, err);
            if (status != MLO_OK)
                return status;
        }
    /* those within a larger one: of two that cover a commit, the longer stays */
    json_array_foreach(p->packs, i, pack)
    {
        int64_t from = mlo_json_i64(pack, "from", 0), to = mlo_json_i64(pack, "to", 0);
        json_t *other;
        size_t j;
        bool covered = false;
        json_array_foreach(p->packs, j, other) covered =
            covered || (!is(other, RETIRED) && mlo_json_i64(other, "from", 0) <= from &&
                        mlo_json_i64(other, "to", 0) >= to &&
                        mlo_json_i64(other, "to", 0) - mlo_json_i64(other, "from", 0) > to - from);
        if (!covered || is(pack, RETIRED))
            continue;
        if (json_object_set_new(pack, "state", json_string(RETIRED)) != 0 ||
            json_object_set_new(pack, "since", json_integer(now_s())) != 0)
            return mlo_error_nomem(err);
        p->changed = true;
    }
    return MLO_OK;
}

/* --- whether the bytes are what was written ------------------------------------------------------------- */

static bool sound(const struct packing *p, const json_t *pack)
{
    char *data = file_of(p->path, pack, "pack"), *index = file_of(p->path, pack, "idx");
    struct mlo_git_id sum, name;
    bool ok = data && index && mlo_git_id_parse(mlo_json_str(pack, "name", ""), &name) &&
              mlo_git_file_sound(data, &sum) && mlo_git_id_eq(&sum, &name) && mlo_git_file_sound(index, &sum);
    free(data);
    free(index);
    return ok;
}

static bool within(const json_t *pack, const json_t *larger)
{
    return pack != larger && mlo_json_i64(larger, "from", 0) <= mlo_json_i64(pack, "from", 0) &&
           mlo_json_i64(larger, "to", 0) >= mlo_json_i64(pack, "to", 0);
}

/* The one that holds what a retired one held. */
static json_t *instead_of(const struct packing *p, const json_t *pack)
{
    json_t *other;
    size_t i;
    json_array_foreach(p->packs, i, other)
    {
        if (!is(other, RETIRED) && within(pack, other))
            return other;
    }
    return NULL;
}

/* Off the list; what it was to replace, which is still there, is back on it. `damaged` becomes it, yours. */
static enum mlo_status drop(struct packing *p, json_t *pack, json_t **damaged, struct mlo_error *err)
{
    json_t *other;
    size_t i, at = 0;
    *damaged = json_incref(pack);
    p->changed = true;
    mlo_log(MLO_LOG_WARN, "a pack of a ledger is damaged; it is made again", "pack",
            mlo_json_str(pack, "name", ""), "repository", p->path, NULL);
    json_array_foreach(p->packs, i, other)
    {
        if (other == pack)
            at = i;
        else if (is(other, RETIRED) && within(other, pack) &&
                 (json_object_set_new(other, "state", json_string(NEW)) != 0 ||
                  json_object_set_new(other, "since", json_integer(now_s())) != 0))
            return mlo_error_nomem(err);
    }
    return json_array_remove(p->packs, at) == 0 ? MLO_OK : mlo_error_nomem(err);
}

/* --- what goes ----------------------------------------------------------------------------------- */

static int remove_loose(const git_oid *id, void *arg)
{
    const char *path = arg;
    struct mlo_buf file = MLO_BUF_INIT;
    char hex[GIT_OID_HEXSZ + 1];
    git_oid_tostr(hex, sizeof hex, id);
    mlo_buf_printf(&file, "%s/objects/%.2s/%s", path, hex, hex + 2);
    int rc = !mlo_buf_ok(&file) || (unlink(file.data) != 0 && errno != ENOENT) ? -1 : 0;
    mlo_buf_clear(&file);
    return rc;
}

/* The loose ones of what this pack holds. */
static enum mlo_status unload(struct packing *p, json_t *pack, struct mlo_error *err)
{
    git_odb *odb = NULL;
    git_odb_backend *backend = NULL;
    enum mlo_status status = MLO_OK;
    char *index = file_of(p->path, pack, "idx");
    if (!index)
        return mlo_error_nomem(err);
    if (git_odb_new(&odb) != 0 || git_odb_backend_one_pack(&backend, index) != 0 ||
        git_odb_add_backend(odb, backend, 1) != 0) {
        status = failed(err, "cannot read", index);
        goto out;
    }
    backend = NULL; /* the database's */
    if (git_odb_foreach(odb, remove_loose, (void *)p->path) != 0)
        status = failed(err, "cannot take the loose objects out of", p->path);
    else if (json_object_set_new(pack, "state", json_string(ALONE)) != 0)
        status = mlo_error_nomem(err);
    p->changed = true;
out:
    if (backend && backend->free)
        backend->free(backend);
    git_odb_free(odb);
    free(index);
    return status;
}

static void remove_files(struct packing *p, const json_t *pack)
{
    static const char *const suffixes[] = {"idx", "pack"};
    for (size_t i = 0; i < MLO_COUNT(suffixes); i++) {
        char *file = file_of(p->path, pack, suffixes[i]);
        if (file)
            unlink(file);
        free(file);
    }
}

/* Stops at a pack that is damaged. */
static enum mlo_status clear_away(struct packing *p, json_t **damaged, struct mlo_error *err)
{
    int64_t until = now_s() - p->ledger->pack_grace_s;
    for (size_t i = json_array_size(p->packs); i-- > 0;) {
        json_t *pack = json_array_get(p->packs, i);
        if (mlo_json_i64(pack, "since", 0) > until || is(pack, ALONE))
            continue;
        json_t *stays = is(pack, RETIRED) ? instead_of(p, pack) : pack;
        if (stays && !sound(p, stays))
            return drop(p, stays, damaged, err);
        mlo_ledger_step(p->ledger, "before what it replaces goes");
        if (is(pack, RETIRED)) {
            remove_files(p, pack);
            json_array_remove(p->packs, i);
            p->changed = true;
            continue;
        }
        enum mlo_status status = unload(p, pack, err);
        if (status != MLO_OK)
            return status;
    }
    return MLO_OK;
}

enum mlo_status mlo_ledger_pack(struct mlo_ledger *ledger, struct mlo_db_conn *conn, int64_t project_id,
                                git_repository *repo, const char *path, int64_t n, bool *again,
                                struct mlo_error *err)
{
    struct packing p = {.ledger = ledger, .conn = conn, .project_id = project_id, .repo = repo, .path = path};
    json_t *damaged = NULL;
    enum mlo_status status = MLO_OK;
    *again = false;
    if (!load(path, &p.packs))
        return mlo_error_set(err, MLO_EFORMAT, "the list of packs in %s cannot be read", path);
    MLO_TRY(make_missing(&p, n, err));
    if (p.changed)
        MLO_TRY(save(&p, err));
    mlo_ledger_step(ledger, "packs listed");
    MLO_TRY(clear_away(&p, &damaged, err));
    if (p.changed)
        MLO_TRY(save(&p, err));
    if (damaged) {
        remove_files(&p, damaged);
        *again = true;
    }
out:
    json_decref(damaged);
    json_decref(p.packs);
    return status;
}
