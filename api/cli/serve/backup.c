/* `mlopt backup`, `mlopt backup verify`, `mlopt restore`. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/cli/serve/serve.h"

/* An installation: one folder (--data) or its parts. Clear it. */
struct place {
    char *dir; /* of --data; NULL with parts */
    struct mlo_embedded *pg;
    struct mlo_db *db;
    struct mlo_blob_store *blobs;
    char *blob_url, *ledger_key, *plan_key; /* NULL: there is none */
    int lock_fd;
};

static void place_clear(struct place *p)
{
    mlo_blob_store_close(p->blobs);
    mlo_db_close(p->db);
    mlo_embedded_stop(p->pg);
    if (p->lock_fd >= 0)
        close(p->lock_fd);
    free(p->dir);
    free(p->blob_url);
    free(p->ledger_key);
    free(p->plan_key);
}

static enum mlo_status open_owner(struct place *p, const char *url, struct mlo_error *err)
{
    const struct mlo_db_options options = {
        .conninfo = url, .application = "mlopt backup", .max_connections = 2};
    return mlo_db_open(&options, &p->db, err);
}

/* The parts that a folder of `mlopt up` has, or that options name. */
static enum mlo_status name_parts(const struct mlo_cli *cli, struct place *p, struct mlo_error *err)
{
    const char *blobs = mlo_cli_opt(cli, "blobs"), *ledger = mlo_cli_opt(cli, "ledger");
    struct mlo_buf url = MLO_BUF_INIT;
    if (p->dir) {
        mlo_buf_printf(&url, "file:%s/blobs", p->dir);
        p->blob_url = blobs ? strdup(blobs) : mlo_buf_take(&url);
        p->ledger_key = mlo_fs_join(p->dir, "ledger", "ledger.key", NULL);
        p->plan_key = mlo_fs_join(p->dir, "work", "plan.key", NULL);
    } else {
        p->blob_url = blobs ? strdup(blobs) : NULL;
        p->ledger_key = ledger ? mlo_fs_join(ledger, "ledger.key", NULL) : NULL;
    }
    mlo_buf_clear(&url);
    if (p->dir && ledger)
        return mlo_error_set(err, MLO_EUSAGE, "--ledger is in --data already");
    if (!p->blob_url && !blobs && !p->dir)
        return mlo_error_set(err, MLO_EUSAGE, "where are the blobs? give --blobs URL (or --data DIR)");
    if (!p->blob_url || ((ledger || p->dir) && !p->ledger_key) || (p->dir && !p->plan_key))
        return mlo_error_nomem(err);
    return MLO_OK;
}

/* Each key file that the installation has a place for. */
static size_t name_keys(const struct place *p, struct mlo_backup_key out[2])
{
    size_t n = 0;
    if (p->ledger_key)
        out[n++] = (struct mlo_backup_key){"ledger.key", p->ledger_key};
    if (p->plan_key)
        out[n++] = (struct mlo_backup_key){"plan.key", p->plan_key};
    return n;
}

/* The database of a folder: the one that `mlopt up` runs there now, else started for as long as this takes.
 */
static enum mlo_status open_folder_database(struct place *p, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_error away = {0};
    char *conninfo = NULL, *pg_dir = mlo_fs_join(p->dir, "pg", NULL);
    if (!pg_dir)
        return mlo_error_nomem(err);
    status = mlo_embedded_attach(pg_dir, &p->pg, &away);
    if (status == MLO_EUNAVAILABLE) {
        const struct mlo_embedded_options options = {.dir = pg_dir};
        status = mlo_embedded_start(&options, &p->pg, err);
    } else if (status != MLO_OK) {
        *err = away;
        mlo_error_hint(err, "--data takes the folder of mlopt up");
    }
    MLO_TRY(status);
    conninfo = mlo_embedded_conninfo(p->pg, MLO_ROLE_OWNER, NULL);
    status = conninfo ? open_owner(p, conninfo, err) : mlo_error_nomem(err);
out:
    free(conninfo);
    free(pg_dir);
    return status;
}

static enum mlo_status open_place(const struct mlo_cli *cli, struct place *p, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const char *data = mlo_cli_opt(cli, "data"), *url = NULL;
    if (data && mlo_cli_opt(cli, "database"))
        return mlo_error_set(err, MLO_EUSAGE, "--data and --database exclude each other");
    if (data) {
        p->dir = realpath(data, NULL);
        if (!p->dir)
            return mlo_error_errno(err, errno, "cannot use %s", data);
    } else {
        MLO_TRY(mlo_serve_database(cli, &url, err));
    }
    MLO_TRY(name_parts(cli, p, err));
    MLO_TRY(data ? open_folder_database(p, err) : open_owner(p, url, err));
    MLO_TRY(mlo_blob_store_open(p->blob_url, &p->blobs, err));
out:
    return status;
}

static void print_size(struct mlo_buf *out, const json_t *report, const char *count, const char *bytes)
{
    char size[32];
    mlo_buf_printf(out, "%lld blob%s, %s", (long long)mlo_json_i64(report, count, 0),
                   mlo_json_i64(report, count, 0) == 1 ? "" : "s",
                   mlo_str_size((uint64_t)mlo_json_i64(report, bytes, 0), size));
}

static void print_missing(struct mlo_buf *out, const json_t *report)
{
    const json_t *missing = json_object_get(report, "missing"), *digest;
    size_t i, needed = (size_t)mlo_json_i64(report, "missing_needed", INT32_MAX);
    json_array_foreach(missing, i, digest)
        mlo_buf_printf(out, "  without %s: the blob store had lost it%s\n", json_string_value(digest),
                       i < needed ? "" : ", and nothing refers to it");
}

static enum mlo_status print_take(struct mlo_buf *out, struct mlo_error *err)
{
    enum mlo_status status =
        mlo_buf_ok(out) ? mlo_cli_print(err, "%s", mlo_buf_str(out)) : mlo_error_nomem(err);
    mlo_buf_clear(out);
    return status;
}

/* --- backup ---------------------------------------------------------------------------------------- */

static enum mlo_status print_backup(const struct mlo_cli *cli, const json_t *report, struct mlo_error *err)
{
    struct mlo_buf out = MLO_BUF_INIT;
    char size[32];
    if (cli->json)
        return mlo_cli_print_json(report, err);
    mlo_buf_printf(&out, "%s: ", mlo_json_str(report, "snapshot", ""));
    print_size(&out, report, "blobs", "bytes");
    mlo_buf_printf(&out, "; %lld new, %s\n", (long long)mlo_json_i64(report, "copied", 0),
                   mlo_str_size((uint64_t)mlo_json_i64(report, "copied_bytes", 0), size));
    print_missing(&out, report);
    mlo_buf_printf(&out, "  manifest %s, %s%s\n", mlo_json_str(report, "digest", ""),
                   mlo_json_str(report, "signed_by", NULL) ? "signed by " : "not signed",
                   mlo_json_str(report, "signed_by", ""));
    return print_take(&out, err);
}

static enum mlo_status backup_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct place p = {.lock_fd = -1};
    struct mlo_backup_key keys[2];
    struct mlo_cli_progress progress;
    json_t *report = NULL;
    bool is_unsigned = mlo_cli_has(cli, "unsigned");
    MLO_TRY(open_place(cli, &p, err));
    if (!is_unsigned && (!p.ledger_key || !mlo_fs_exists(p.ledger_key))) {
        status = mlo_error_set(err, MLO_EUSAGE, "there is no key to sign the backup with%s%s",
                               p.ledger_key ? ": " : "", p.ledger_key ? p.ledger_key : "");
        mlo_error_hint(err, "give --ledger DIR, the folder with the server's ledger.key; or --unsigned");
        goto out;
    }
    mlo_cli_progress_start(&progress, cli, "backup");
    const struct mlo_backup_options options = {
        .dir = cli->args[0],
        .db = p.db,
        .blobs = p.blobs,
        .key_path = is_unsigned ? NULL : p.ledger_key,
        .keys = keys,
        .key_count = mlo_cli_has(cli, "with-keys") ? name_keys(&p, keys) : 0,
        .check = mlo_cli_has(cli, "check"),
        .allow_damaged = mlo_cli_has(cli, "allow-damaged"),
        .on_progress = mlo_cli_progress,
        .progress_arg = &progress,
    };
    status = mlo_backup_make(&options, &report, err);
    mlo_cli_progress_end(&progress);
    MLO_TRY(status);
    MLO_TRY(print_backup(cli, report, err));
    if (!options.key_count && p.ledger_key)
        mlo_cli_note(cli, "the backup holds no private keys: keep a copy of %s elsewhere, or use --with-keys",
                     p.ledger_key);
out:
    json_decref(report);
    place_clear(&p);
    return status;
}

#define OPTIONS_PLACE(what)                                                                                  \
    {"data", 0, "DIR", what ", the folder of mlopt up"},                                                     \
        {"database", 0, "URL", "PostgreSQL, as the schema's owner; rather in MLOPT_DATABASE"},               \
        {"blobs", 0, "URL", "the blob store; with --data only when it is not in DIR"},                       \
    {                                                                                                        \
        "ledger", 0, "DIR", "the folder with the server's ledger.key"                                        \
    }

static const struct mlo_cli_option backup_options[] = {
    OPTIONS_PLACE("what is copied"),
    {"with-keys", 0, NULL, "put the private keys into the backup too: whoever has it can sign"},
    {"unsigned", 0, NULL, "do not sign the manifest"},
    {"check", 0, NULL, "read the blobs that the backup has already, and replace those that are damaged"},
    {"allow-damaged", 0, NULL, "make it without the blobs that the store has lost, and say which"},
    {NULL},
};
const struct mlo_cli_verb mlo_verb_backup = {
    .name = "backup",
    .group = "Service",
    .run = backup_run,
    .options = backup_options,
    .positional = "BACKUP-DIR --data DIR",
    .min_args = 1,
    .max_args = 1,
    .help = "copy database, blobs and ledgers of one moment, while the service runs",
    .detail =
        "Every backup into the same BACKUP-DIR shares its blobs: what is there already is not copied again.\n"
        "One that is cut off leaves those before as they are; run it again. See docs/backup.md.\n",
};

/* --- backup verify --------------------------------------------------------------------------------- */

static enum mlo_status print_check(const struct mlo_cli *cli, const json_t *report, struct mlo_error *err)
{
    struct mlo_buf out = MLO_BUF_INIT;
    const json_t *problems = json_object_get(report, "problems"), *problem;
    size_t i;
    if (cli->json)
        return mlo_cli_print_json(report, err);
    mlo_buf_printf(&out, "%s: %s; ", mlo_json_str(report, "snapshot", ""),
                   json_array_size(problems) ? "DAMAGED" : "ok");
    print_size(&out, report, "blobs", "bytes");
    mlo_buf_printf(&out, "\n  manifest %s, %s%s\n", mlo_json_str(report, "digest", ""),
                   mlo_json_str(report, "signed_by", NULL) ? "signed by " : "not signed",
                   mlo_json_str(report, "signed_by", ""));
    json_array_foreach(problems, i, problem) mlo_buf_printf(&out, "  %s\n", json_string_value(problem));
    print_missing(&out, report);
    return print_take(&out, err);
}

static enum mlo_status verify_run(struct mlo_cli *cli, struct mlo_error *err)
{
    struct mlo_cli_progress progress;
    json_t *report = NULL;
    struct mlo_error printing = {0};
    mlo_cli_progress_start(&progress, cli, "verify");
    const struct mlo_backup_check check = {.dir = cli->args[0],
                                           .snapshot = mlo_cli_opt(cli, "snapshot"),
                                           .trust = mlo_cli_opt(cli, "trust"),
                                           .on_progress = mlo_cli_progress,
                                           .progress_arg = &progress};
    enum mlo_status status = mlo_backup_verify(&check, &report, err);
    mlo_cli_progress_end(&progress);
    enum mlo_status printed = report ? print_check(cli, report, &printing) : MLO_OK;
    json_decref(report);
    if (status == MLO_OK && printed != MLO_OK) {
        *err = printing;
        return printed;
    }
    return status;
}

#define OPTION_SNAPSHOT                                                                                      \
    {                                                                                                        \
        "snapshot", 0, "NAME", "which one (the newest)"                                                      \
    }
#define OPTION_TRUST                                                                                         \
    {                                                                                                        \
        "trust", 0, "SHA256:…", "it must be signed by this key (mlopt keys shows them)"                      \
    }

static const struct mlo_cli_option verify_options[] = {OPTION_SNAPSHOT, OPTION_TRUST, {NULL}};
const struct mlo_cli_verb mlo_verb_backup_verify = {
    .name = "backup verify",
    .group = "Service",
    .run = verify_run,
    .options = verify_options,
    .positional = "BACKUP-DIR",
    .min_args = 1,
    .max_args = 1,
    .help = "read all of a backup and compare it with its signed manifest",
};

/* --- restore ---------------------------------------------------------------------------------------- */

static bool folder_empty(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    bool empty = dir != NULL;
    while (dir && empty && (entry = readdir(dir)))
        empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    if (dir)
        closedir(dir);
    return empty;
}

/* DIR.restoring, which takes DIR's name when all is well. What a killed restore left of blobs stays. */
static enum mlo_status make_beside(const char *target, struct place *p, struct mlo_error *err)
{
    static const char *const parts[] = {"blobs", "work", "ledger"};
    enum mlo_status status = MLO_OK;
    struct mlo_buf path = MLO_BUF_INIT;
    char *part = NULL;
    if (mlo_fs_exists(target) && !folder_empty(target)) {
        status = mlo_error_set(err, MLO_ECONFLICT, "%s is not empty", target);
        mlo_error_hint(err, "restore into a folder that is not there yet");
        goto out;
    }
    mlo_buf_puts(&path, target);
    while (path.len > 1 && path.data[path.len - 1] == '/')
        path.data[--path.len] = '\0';
    mlo_buf_puts(&path, ".restoring");
    if (!mlo_buf_ok(&path)) {
        status = mlo_error_nomem(err);
        goto out;
    }
    MLO_TRY(mlo_fs_mkdirs(mlo_buf_str(&path), err));
    p->dir = realpath(mlo_buf_str(&path), NULL);
    /* as `up` has it: root hands PostgreSQL to another user, who must be able to walk through */
    if (!p->dir || chmod(p->dir, geteuid() == 0 ? 0711 : 0700) != 0) {
        status = mlo_error_errno(err, errno, "cannot use %s", mlo_buf_str(&path));
        goto out;
    }
    p->lock_fd = open(p->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (p->lock_fd < 0 || flock(p->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        status = mlo_error_set(err, MLO_ECONFLICT, "another restore is writing to %s", p->dir);
        goto out;
    }
    part = mlo_fs_join(p->dir, "pg", NULL);
    if (part)
        mlo_fs_remove_tree(part);
    for (size_t i = 0; i < MLO_COUNT(parts); i++) {
        free(part);
        part = mlo_fs_join(p->dir, parts[i], NULL);
        MLO_TRY(part ? mlo_fs_mkdirs_private(part, err) : mlo_error_nomem(err));
    }
out:
    mlo_buf_clear(&path);
    free(part);
    return status;
}

static enum mlo_status open_target(const struct mlo_cli *cli, struct place *p, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const char *data = mlo_cli_opt(cli, "data"), *url = NULL, *bootstrap = mlo_cli_opt(cli, "bootstrap");
    const char *name = mlo_cli_opt(cli, "name");
    char *conninfo = NULL, *pg_dir = NULL;
    if (data && (mlo_cli_opt(cli, "database") || bootstrap))
        return mlo_error_set(err, MLO_EUSAGE, "--data excludes --database and --bootstrap");
    if (data) {
        MLO_TRY(make_beside(data, p, err));
        MLO_TRY(name_parts(cli, p, err));
        pg_dir = mlo_fs_join(p->dir, "pg", NULL);
        const struct mlo_embedded_options options = {.dir = pg_dir};
        MLO_TRY(pg_dir ? mlo_embedded_start(&options, &p->pg, err) : mlo_error_nomem(err));
        conninfo = mlo_embedded_conninfo(p->pg, MLO_ROLE_OWNER, NULL);
        MLO_TRY(conninfo ? open_owner(p, conninfo, err) : mlo_error_nomem(err));
    } else {
        MLO_TRY(mlo_serve_database(cli, &url, err));
        MLO_TRY(name_parts(cli, p, err));
        if (bootstrap)
            MLO_TRY(mlo_db_bootstrap(bootstrap, name ? name : "mlopt", err));
        MLO_TRY(open_owner(p, url, err));
        if (mlo_cli_opt(cli, "ledger"))
            MLO_TRY(mlo_fs_mkdirs_private(mlo_cli_opt(cli, "ledger"), err));
    }
    MLO_TRY(mlo_blob_store_open(p->blob_url, &p->blobs, err));
out:
    free(conninfo);
    free(pg_dir);
    return status;
}

/* Stops the database, so that the folder is at rest, and gives it its name. */
static enum mlo_status take_place(struct place *p, const char *target, struct mlo_error *err)
{
    mlo_db_close(p->db);
    p->db = NULL;
    mlo_embedded_stop(p->pg);
    p->pg = NULL;
    if (rename(p->dir, target) != 0)
        return mlo_error_errno(err, errno, "cannot rename %s to %s", p->dir, target);
    return MLO_OK;
}

static enum mlo_status print_restore(const struct mlo_cli *cli, const json_t *report, struct mlo_error *err)
{
    struct mlo_buf out = MLO_BUF_INIT;
    int64_t applied = mlo_json_i64(report, "migrations", 0);
    if (cli->json)
        return mlo_cli_print_json(report, err);
    mlo_buf_printf(&out, "%s: restored; ", mlo_json_str(report, "snapshot", ""));
    print_size(&out, report, "blobs", "bytes");
    mlo_buf_printf(
        &out, "\n  %lld audit entries of %lld project%s and %lld signed commits are as the manifest says\n",
        (long long)mlo_json_i64(report, "entries", 0), (long long)mlo_json_i64(report, "projects", 0),
        mlo_json_i64(report, "projects", 0) == 1 ? "" : "s", (long long)mlo_json_i64(report, "commits", 0));
    if (applied)
        mlo_buf_printf(&out, "  brought to this program's schema: %lld migration%s\n", (long long)applied,
                       applied == 1 ? "" : "s");
    if (mlo_json_i64(report, "webhooks_paused", 0))
        mlo_buf_printf(
            &out,
            "  webhooks that are paused, until this is the service: %lld (mlopt webhooks set PROJECT "
            "ID --state enabled)\n",
            (long long)mlo_json_i64(report, "webhooks_paused", 0));
    if (mlo_json_i64(report, "healed", 0))
        mlo_buf_printf(&out, "  blobs that had been found damaged and are whole again: %lld\n",
                       (long long)mlo_json_i64(report, "healed", 0));
    print_missing(&out, report);
    return print_take(&out, err);
}

/* The key is handed over from elsewhere, checked before anything is done. */
static enum mlo_status place_key(const struct mlo_cli *cli, const struct place *p, struct mlo_error *err)
{
    const char *from = mlo_cli_opt(cli, "key");
    struct mlo_buf text = MLO_BUF_INIT;
    if (!from)
        return MLO_OK;
    if (!p->ledger_key)
        return mlo_error_set(err, MLO_EUSAGE, "--key needs --ledger DIR to put it in");
    enum mlo_status status = mlo_fs_read(from, 1 << 16, &text, err);
    mode_t old = umask(077);
    if (status == MLO_OK)
        status = mlo_fs_write_atomic(p->ledger_key, mlo_buf_str(&text), text.len, err);
    umask(old);
    if (text.data)
        explicit_bzero(text.data, text.len);
    mlo_buf_clear(&text);
    return status;
}

static enum mlo_status restore_run(struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct place p = {.lock_fd = -1};
    struct mlo_backup_key keys[2];
    struct mlo_cli_progress progress;
    struct mlo_sign_key *key = NULL;
    json_t *report = NULL;
    const char *data = mlo_cli_opt(cli, "data");
    if (mlo_cli_opt(cli, "key"))
        MLO_TRY(mlo_sign_key_load(mlo_cli_opt(cli, "key"), &key, err));
    MLO_TRY(open_target(cli, &p, err));
    mlo_cli_progress_start(&progress, cli, "restore");
    const struct mlo_restore_options options = {
        .from = {.dir = cli->args[0],
                 .snapshot = mlo_cli_opt(cli, "snapshot"),
                 .trust = mlo_cli_opt(cli, "trust"),
                 .on_progress = mlo_cli_progress,
                 .progress_arg = &progress},
        .db = p.db,
        .blobs = p.blobs,
        /* the folder beside is ours, and what lies in it is of a restore that was killed */
        .resume = mlo_cli_has(cli, "resume") || (data && !mlo_cli_opt(cli, "blobs")),
        .keys = keys,
        .key_count = name_keys(&p, keys),
    };
    status = mlo_backup_restore(&options, &report, err);
    mlo_cli_progress_end(&progress);
    MLO_TRY(status);
    MLO_TRY(place_key(cli, &p, err));
    bool signs = p.ledger_key && mlo_fs_exists(p.ledger_key);
    if (data)
        MLO_TRY(take_place(&p, data, err));
    MLO_TRY(print_restore(cli, report, err));
    if (!signs)
        mlo_cli_note(cli,
                     "without ledger.key the service writes no ledgers: put the file into its ledger folder");
out:
    mlo_sign_key_free(key);
    json_decref(report);
    place_clear(&p);
    return status;
}

static const struct mlo_cli_option restore_options[] = {
    OPTIONS_PLACE("where it goes: a folder that is empty or not there"),
    {"bootstrap", 0, "URL", "first make roles and database, as this administrator of PostgreSQL"},
    {"name", 0, "DATABASE", "with --bootstrap: the database to make (mlopt)"},
    OPTION_SNAPSHOT,
    OPTION_TRUST,
    {"key", 0, "FILE", "the ledger.key, when the backup was made without --with-keys"},
    {"resume", 0, NULL, "the blob store may hold blobs: a restore was cut off"},
    {NULL},
};
const struct mlo_cli_verb mlo_verb_restore = {
    .name = "restore",
    .group = "Service",
    .run = restore_run,
    .options = restore_options,
    .positional = "BACKUP-DIR --data DIR",
    .min_args = 1,
    .max_args = 1,
    .help = "make an installation from a backup, and check that its history is the same",
    .detail =
        "Everything is checked against the manifest; a folder appears only when all of it is right. What "
        "was\n"
        "made after the backup is not in it: clients that remember a later head of an audit log say so.\n",
};
