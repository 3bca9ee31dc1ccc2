/* A file store beside the test's database, and versions whose bytes are really there. */
#ifndef MLO_TESTS_UPKEEP_FIXTURE_H
#define MLO_TESTS_UPKEEP_FIXTURE_H

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/pg_fixture.h"

static const struct mlo_actor root = MLO_ACTOR_SYSTEM;

struct upkeep {
    struct pg_fixture *f;
    char *dir, *root;
    struct mlo_blob_store *blobs;
    int64_t project;
};

/* The store at `blobs`, NULL: files in a folder of its own. */
static inline void upkeep_open_at(struct upkeep *u, struct pg_fixture *f, const char *blobs)
{
    struct mlo_buf url = MLO_BUF_INIT;
    *u = (struct upkeep){.f = f};
    assert_mlo_ok(mlo_fs_tempdir(NULL, "mlopt-upkeep-", &u->dir, &f->err), &f->err);
    u->root = mlo_fs_join(u->dir, "blobs", NULL);
    mlo_buf_printf(&url, "file:%s", u->root);
    assert_mlo_ok(mlo_blob_store_open(blobs ? blobs : mlo_buf_str(&url), &u->blobs, &f->err), &f->err);
    mlo_buf_clear(&url);
    assert_mlo_ok(mlo_project_ensure(f->conn, &root, "fashion", &u->project, &f->err), &f->err);
}

static inline void upkeep_open(struct upkeep *u, struct pg_fixture *f)
{
    upkeep_open_at(u, f, NULL);
}

static inline void upkeep_close(struct upkeep *u)
{
    mlo_blob_store_close(u->blobs);
    mlo_fs_remove_tree(u->dir);
    free(u->dir);
    free(u->root);
}

static inline struct mlo_digest upkeep_digest(const char *text)
{
    struct mlo_digest d;
    mlo_digest_of(text, strlen(text), &d);
    return d;
}

/* The bytes, and their row. */
static inline struct mlo_digest upkeep_put(struct upkeep *u, const char *text)
{
    struct mlo_digest d;
    assert_mlo_ok(mlo_blob_put_bytes(u->blobs, text, strlen(text), &d, &u->f->err), &u->f->err);
    assert_mlo_ok(
        mlo_blob_record_stored(u->f->conn, u->blobs, &root, u->project, &d, strlen(text), &u->f->err),
        &u->f->err);
    return d;
}

static inline struct mlo_version_info upkeep_version(struct upkeep *u, const char *model, const char *text)
{
    struct mlo_version_info v;
    struct mlo_manifest_blob b = {.role = "model", .name = "m.onnx", .digest = upkeep_put(u, text)};
    int64_t id;
    assert_mlo_ok(mlo_model_ensure(u->f->conn, &root, u->project, model, &id, &u->f->err), &u->f->err);
    assert_mlo_ok(mlo_version_create(u->f->conn, &root, id, "", &b, 1, &v, &u->f->err), &u->f->err);
    return v;
}

static inline void upkeep_variant(struct upkeep *u, const struct mlo_version_info *v, const char *name,
                                  const char *text)
{
    struct mlo_digest d = upkeep_put(u, text);
    assert_mlo_ok(mlo_variant_name(u->f->conn, &root, v->id, name, &d, NULL, 0, NULL, &u->f->err),
                  &u->f->err);
}

static inline enum mlo_status upkeep_delete(struct upkeep *u, const char *model, int64_t version,
                                            const char *variant, int64_t grace_s, int64_t *id)
{
    struct mlo_deletion_request r = {.project_id = u->project,
                                     .model = model,
                                     .version = version,
                                     .variant = variant,
                                     .reason = "not needed",
                                     .grace_s = grace_s};
    json_t *out = NULL;
    enum mlo_status status = mlo_delete(u->f->conn, &root, &r, NULL, &out, &u->f->err);
    if (status == MLO_OK && id)
        *id = mlo_json_i64(out, "id", 0);
    json_decref(out);
    return status;
}

static inline struct mlo_gc_result upkeep_gc(struct upkeep *u, int64_t grace_s)
{
    struct mlo_gc_options o = {.blobs = u->blobs, .grace_s = grace_s};
    struct mlo_gc_result r;
    assert_mlo_ok(mlo_gc_run(u->f->conn, &root, &o, &r, NULL, &u->f->err), &u->f->err);
    return r;
}

/* Yours. */
static inline json_t *upkeep_fsck(struct upkeep *u, bool repair, int64_t grace_s)
{
    struct mlo_fsck_options o = {.blobs = u->blobs, .bytes = true, .repair = repair, .grace_s = grace_s};
    json_t *out;
    assert_mlo_ok(mlo_fsck_run(u->f->conn, &root, &o, NULL, &out, &u->f->err), &u->f->err);
    assert_true(json_is_null(json_object_get(out, "next")));
    return out;
}

static inline void upkeep_clean(struct upkeep *u)
{
    json_t *out = upkeep_fsck(u, false, 3600);
    if (json_array_size(json_object_get(out, "problems"))) {
        char *text = json_dumps(out, JSON_INDENT(1));
        fail_msg("the store and the database differ: %s", text);
    }
    json_decref(out);
}

static inline bool upkeep_has(struct upkeep *u, const char *text)
{
    struct mlo_digest d = upkeep_digest(text);
    return mlo_blob_exists(u->blobs, &d);
}

/* Yours. */
static inline char *upkeep_path(const struct upkeep *u, const char *text)
{
    char *path;
    struct mlo_error err = {0};
    struct mlo_digest d = upkeep_digest(text);
    assert_mlo_ok(mlo_blob_path(u->blobs, &d, u->dir, false, &path, &err), &err);
    return path;
}

/* Another bit in its bytes. */
static inline void upkeep_damage(const struct upkeep *u, const char *text)
{
    char *path = upkeep_path(u, text), byte = 0;
    assert_int_equal(chmod(path, 0600), 0);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &byte, 1, 2) == 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, 2), 1);
    close(fd);
    free(path);
}

static inline void upkeep_sql(struct upkeep *u, const char *text)
{
    struct mlo_db_conn *owner;
    assert_mlo_ok(mlo_db_acquire(u->f->owner, &owner, &u->f->err), &u->f->err);
    assert_mlo_ok(mlo_db_exec_text(owner, text, &u->f->err), &u->f->err);
    mlo_db_release(owner);
}

#endif
