/* Plans' files: written, signed and looked at. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engines/plans_impl.h"

static const char SIGNED_AS[] = "mlopt plan 1";

enum { PIECE = 1 << 18 };

/* --- the fingerprint --------------------------------------------------------------------------------------
 */

static json_t *ends(struct mlo_value *const *values, int count)
{
    char type[256];
    json_t *out = json_array();
    for (int i = 0; out && i < count; i++)
        if (!values[i]->constant)
            json_array_append_new(out, json_pack("{s:s, s:s}", "name", values[i]->name, "type",
                                                 mlo_type_describe(&values[i]->type, type, sizeof type)));
    return out;
}

enum mlo_status mlo_plan_fingerprint(const struct mlo_engine *engine, const struct mlo_plan *plan,
                                     const struct mlo_plan_source *source, json_t **out,
                                     struct mlo_error *err)
{
    json_t *machine = NULL;
    char model[MLO_DIGEST_TEXT_SIZE];
    if (!engine->save)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "the engine '%s' has no plans that can be kept",
                             engine->name);
    enum mlo_status status =
        engine->identity_of ? engine->identity_of(plan, &machine, err) : engine->identity(&machine, err);
    if (status != MLO_OK)
        return status;
    const struct mlo_graph *g = engine->interface(plan)->graph;
    *out = json_pack("{s:i, s:s, s:o, s:s, s:i, s:I, s:s, s:o, s:o}", "format", MLO_PLAN_FORMAT, "mlopt",
                     MLOPT_VERSION, "machine", machine, "numerics",
                     source->numerics == MLO_NUMERICS_FAST ? "fast" : "invariant", "threads",
                     (int)MLO_MAX(source->threads, 1u), "batch", (json_int_t)source->batch, "model",
                     mlo_digest_text(&source->model, model), "inputs", ends(g->inputs, g->input_count),
                     "outputs", ends(g->outputs, g->output_count));
    return *out ? MLO_OK : mlo_error_nomem(err);
}

/* The machine's members that differ: "isa is avx2 here and was avx512-vnni". */
static void explain(const char *key, const json_t *was, const json_t *is, struct mlo_buf *text)
{
    const char *sub;
    json_t *value;
    if (json_is_object(was) && json_is_object(is)) {
        json_object_foreach((json_t *)was, sub, value)
        {
            if (!json_equal(value, json_object_get(is, sub)))
                explain(sub, value, json_object_get(is, sub), text);
        }
        return;
    }
    mlo_buf_printf(text, "%s%s %s (here: %s)", text->len ? ", " : "", key,
                   json_is_string(was) ? json_string_value(was) : "?",
                   json_is_string(is) ? json_string_value(is) : "none");
}

enum mlo_status mlo_plan_check_machine(const json_t *fingerprint, const struct mlo_engine **engine,
                                       struct mlo_error *err)
{
    const json_t *machine = json_object_get(fingerprint, "machine");
    const char *mlopt = mlo_json_str(fingerprint, "mlopt", "?");
    json_t *here = NULL;
    struct mlo_buf text = MLO_BUF_INIT;
    enum mlo_status status;
    if (mlo_json_i64(fingerprint, "format", 0) != MLO_PLAN_FORMAT)
        return mlo_error_set(err, MLO_ESTALE, "the plan's format is %lld, and this program knows %d",
                             (long long)mlo_json_i64(fingerprint, "format", 0), MLO_PLAN_FORMAT);
    MLO_TRY(mlo_engine_find(mlo_json_str(machine, "engine", ""), engine, err));
    if (!(*engine)->identity) {
        status =
            mlo_error_set(err, MLO_EFORMAT, "the engine '%s' has no plans that can be kept", (*engine)->name);
        goto out;
    }
    MLO_TRY((*engine)->probe(err));
    MLO_TRY((*engine)->identity(&here, err));
    if (strcmp(mlopt, MLOPT_VERSION) != 0)
        mlo_buf_printf(&text, "mlopt %s (here: %s)", mlopt, MLOPT_VERSION);
    explain("machine", machine, here, &text);
    const char *open = (*engine)->may_lack;
    if (open && !json_object_get(machine, open))
        json_object_del(here, open);
    if (!text.len && !json_equal(machine, here)) /* what was said agrees, but not all was */
        mlo_buf_puts(&text, "a machine that it does not describe in full");
    if (text.len) {
        status = mlo_error_set(err, MLO_ESTALE, "the plan was made for %s", mlo_buf_str(&text));
        mlo_error_hint(err,
                       "compile the model again on this machine: mlopt compile MODEL.onnx --out FILE.plan");
    }
out:
    json_decref(here);
    mlo_buf_clear(&text);
    return status;
}

/* --- writing ----------------------------------------------------------------------------------------------
 */

static void message_of(const struct mlo_digest *digest, uint8_t out[sizeof SIGNED_AS + MLO_DIGEST_SIZE])
{
    memcpy(out, SIGNED_AS, sizeof SIGNED_AS);
    memcpy(out + sizeof SIGNED_AS, digest->bytes, MLO_DIGEST_SIZE);
}

bool plan_seal_holds(const struct plan_seal *seal)
{
    uint8_t message[sizeof SIGNED_AS + MLO_DIGEST_SIZE];
    message_of(&seal->digest, message);
    return mlo_sign_verify(&seal->signer, message, sizeof message, &seal->signature);
}

/* By read(): of a file that becomes shorter meanwhile, a mapping would end the process. */
enum mlo_status plan_hash(int fd, uint64_t size, mlo_plan_sink_fn *sink, void *arg, struct mlo_digest *out,
                          struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_hasher *hasher = mlo_hasher_new();
    char *piece = malloc(PIECE);
    if (!hasher || !piece) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (lseek(fd, 0, SEEK_SET) < 0) {
        status = mlo_error_errno(err, errno, "cannot read the plan");
        goto out;
    }
    for (uint64_t at = 0; at < size;) {
        size_t want = (size_t)MLO_MIN((uint64_t)PIECE, size - at), got = 0;
        if (!mlo_fs_read_full(fd, piece, want, &got)) {
            status = mlo_error_errno(err, errno, "cannot read the plan");
            goto out;
        }
        if (got != want) {
            status = mlo_error_set(err, MLO_EIO, "the plan became shorter while it was read");
            goto out;
        }
        mlo_hasher_update(hasher, piece, got);
        if (sink)
            MLO_TRY(sink(arg, piece, got, err));
        at += got;
    }
    mlo_hasher_final(hasher, out);
out:
    mlo_hasher_free(hasher);
    free(piece);
    return status;
}

static enum mlo_status make_seal(const struct mlo_digest *digest, const struct mlo_sign_key *key,
                                 struct plan_seal *seal, struct mlo_error *err)
{
    uint8_t message[sizeof SIGNED_AS + MLO_DIGEST_SIZE];
    *seal =
        (struct plan_seal){.magic = PLAN_SEAL_MAGIC, .signer = *mlo_sign_key_public(key), .digest = *digest};
    message_of(digest, message);
    return mlo_sign(key, message, sizeof message, &seal->signature, err);
}

static enum mlo_status seal_file(int fd, uint64_t content_bytes, const struct mlo_sign_key *key,
                                 struct mlo_error *err)
{
    struct plan_seal seal;
    struct mlo_digest digest;
    enum mlo_status status;
    MLO_TRY(plan_hash(fd, content_bytes, NULL, NULL, &digest, err));
    MLO_TRY(make_seal(&digest, key, &seal, err));
    if (lseek(fd, (off_t)content_bytes, SEEK_SET) < 0 || !mlo_fs_write_full(fd, &seal, sizeof seal))
        status = mlo_error_errno(err, errno, "cannot sign the plan");
out:
    return status;
}

static enum mlo_status write_content(int fd, const struct mlo_engine *engine, const struct mlo_plan *plan,
                                     const json_t *fingerprint, uint64_t *content_bytes,
                                     struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_buf text = MLO_BUF_INIT;
    mlo_json_canonical(fingerprint, &text);
    if (!mlo_buf_ok(&text) || text.len > PLAN_FINGERPRINT_MAX) {
        status = mlo_error_nomem(err);
        goto out;
    }
    struct plan_head head = {
        .magic = PLAN_MAGIC, .format = MLO_PLAN_FORMAT, .fingerprint_bytes = (uint32_t)text.len};
    uint64_t used = sizeof head + text.len;
    head.head_bytes = (used + PLAN_HEAD_ALIGN - 1) & ~(uint64_t)(PLAN_HEAD_ALIGN - 1);
    if (lseek(fd, (off_t)head.head_bytes, SEEK_SET) < 0) {
        status = mlo_error_errno(err, errno, "cannot write the plan");
        goto out;
    }
    MLO_TRY(engine->save(plan, fd, err));
    off_t end = lseek(fd, 0, SEEK_CUR);
    head.content_bytes = (uint64_t)end;
    if (end < 0 || lseek(fd, 0, SEEK_SET) < 0 || !mlo_fs_write_full(fd, &head, sizeof head) ||
        !mlo_fs_write_full(fd, text.data, text.len)) {
        status = mlo_error_errno(err, errno, "cannot write the plan");
        goto out;
    }
    *content_bytes = head.content_bytes;
out:
    mlo_buf_clear(&text);
    return status;
}

enum mlo_status mlo_plan_write(const struct mlo_engine *engine, const struct mlo_plan *plan,
                               const struct mlo_plan_source *source, const struct mlo_sign_key *key,
                               const char *path, struct mlo_error *err)
{
    enum mlo_status status;
    json_t *fingerprint = NULL;
    struct mlo_buf temp = MLO_BUF_INIT;
    uint64_t content_bytes = 0;
    int fd = -1;
    MLO_TRY(mlo_plan_fingerprint(engine, plan, source, &fingerprint, err));
    fd = mlo_fs_create_beside(path, &temp);
    if (fd < 0) {
        status = mlo_error_errno(err, errno, "cannot create a file beside %s", path);
        goto out;
    }
    MLO_TRY(write_content(fd, engine, plan, fingerprint, &content_bytes, err));
    if (key)
        MLO_TRY(seal_file(fd, content_bytes, key, err));
    if (fdatasync(fd) < 0 || rename(temp.data, path) < 0)
        status = mlo_error_errno(err, errno, "cannot write %s", path);
out:
    if (fd >= 0) {
        close(fd);
        if (status != MLO_OK)
            unlink(temp.data);
    }
    mlo_buf_clear(&temp);
    json_decref(fingerprint);
    return status;
}

/* Keeps the beginning, with the fingerprint, of what goes on to the sink. */
struct passing {
    const struct mlo_plan_signing *how;
    struct mlo_buf start;
    size_t start_bytes;
};

static enum mlo_status pass_on(void *arg, const void *bytes, size_t size, struct mlo_error *err)
{
    struct passing *p = arg;
    if (p->start.len < p->start_bytes) {
        mlo_buf_append(&p->start, bytes, MLO_MIN(size, p->start_bytes - p->start.len));
        if (!mlo_buf_ok(&p->start))
            return mlo_error_nomem(err);
    }
    return p->how->sink(p->how->arg, bytes, size, err);
}

static enum mlo_status check_start(const struct passing *p, const struct plan_head *head,
                                   struct mlo_error *err)
{
    enum mlo_status status;
    json_t *fingerprint = NULL;
    if (memcmp(p->start.data, head, sizeof *head) != 0)
        return mlo_error_set(err, MLO_EFORMAT, "the plan changed while it was read");
    MLO_TRY(mlo_json_parse(p->start.data + sizeof *head, head->fingerprint_bytes, "the plan's fingerprint",
                           &fingerprint, err));
    if (!json_equal(fingerprint, p->how->fingerprint))
        status = mlo_error_set(err, MLO_EFORMAT, "the plan has another fingerprint than is said of it");
out:
    json_decref(fingerprint);
    return status;
}

enum mlo_status mlo_plan_sign(int fd, const char *name, const struct mlo_plan_signing *how,
                              struct mlo_error *err)
{
    enum mlo_status status;
    struct plan_head head;
    struct plan_seal seal;
    struct mlo_digest digest;
    bool is_signed;
    struct passing passing = {.how = how, .start = MLO_BUF_INIT};
    MLO_TRY(plan_read_ends(fd, name, &head, &seal, &is_signed, err));
    if (head.content_bytes > how->max_bytes || how->max_bytes - head.content_bytes < sizeof seal) {
        status = mlo_error_set(err, MLO_ETOOBIG, "the plan %s has %llu bytes; %llu can be kept", name,
                               (unsigned long long)(head.content_bytes + sizeof seal),
                               (unsigned long long)how->max_bytes);
        goto out;
    }
    passing.start_bytes = sizeof head + head.fingerprint_bytes;
    MLO_TRY(plan_hash(fd, head.content_bytes, pass_on, &passing, &digest, err));
    MLO_TRY(check_start(&passing, &head, err));
    MLO_TRY(make_seal(&digest, how->key, &seal, err));
    status = how->sink(how->arg, &seal, sizeof seal, err);
out:
    mlo_buf_clear(&passing.start);
    return status;
}

/* --- reading ----------------------------------------------------------------------------------------------
 */

static bool read_at(int fd, void *out, size_t size, uint64_t offset)
{
    size_t got = 0;
    return lseek(fd, (off_t)offset, SEEK_SET) >= 0 && mlo_fs_read_full(fd, out, size, &got) && got == size;
}

bool mlo_plan_is_file(const char *path)
{
    char magic[8];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool is = read_at(fd, magic, sizeof magic, 0) && memcmp(magic, PLAN_MAGIC, sizeof magic) == 0;
    close(fd);
    return is;
}

enum mlo_status plan_read_ends(int fd, const char *path, struct plan_head *head, struct plan_seal *seal,
                               bool *is_signed, struct mlo_error *err)
{
    struct stat st;
    *is_signed = false;
    if (fstat(fd, &st) < 0)
        return mlo_error_errno(err, errno, "cannot read %s", path);
    uint64_t size = (uint64_t)st.st_size;
    if (!S_ISREG(st.st_mode) || size < sizeof *head || !read_at(fd, head, sizeof *head, 0) ||
        memcmp(head->magic, PLAN_MAGIC, sizeof head->magic) != 0)
        return mlo_error_set(err, MLO_EFORMAT, "%s is no compiled plan", path);
    if (head->format != MLO_PLAN_FORMAT)
        return mlo_error_set(err, MLO_ESTALE, "the plan's format is %u, and this program knows %d",
                             head->format, MLO_PLAN_FORMAT);
    uint64_t sealed = size > head->content_bytes ? size - head->content_bytes : 0;
    if (head->content_bytes > size || (sealed && sealed != sizeof *seal) ||
        head->head_bytes % PLAN_HEAD_ALIGN != 0 || head->head_bytes >= head->content_bytes ||
        head->fingerprint_bytes > PLAN_FINGERPRINT_MAX ||
        sizeof *head + head->fingerprint_bytes > head->head_bytes)
        return mlo_error_set(err, MLO_EFORMAT, "the plan %s is cut off or damaged", path);
    if (!sealed)
        return MLO_OK;
    if (!read_at(fd, seal, sizeof *seal, head->content_bytes) ||
        memcmp(seal->magic, PLAN_SEAL_MAGIC, sizeof seal->magic) != 0)
        return mlo_error_set(err, MLO_EFORMAT, "the plan %s is cut off or damaged", path);
    *is_signed = true;
    return MLO_OK;
}

enum mlo_status plan_read_fingerprint(int fd, const struct plan_head *head, json_t **out,
                                      struct mlo_error *err)
{
    char *text = malloc(head->fingerprint_bytes + 1);
    if (!text)
        return mlo_error_nomem(err);
    enum mlo_status status = MLO_OK;
    if (!read_at(fd, text, head->fingerprint_bytes, sizeof *head))
        status = mlo_error_set(err, MLO_EFORMAT, "the plan is cut off");
    else
        status = mlo_json_parse(text, head->fingerprint_bytes, "the plan's fingerprint", out, err);
    free(text);
    return status;
}

enum mlo_status mlo_plan_inspect(const char *path, bool verify, struct mlo_plan_info *out,
                                 struct mlo_error *err)
{
    enum mlo_status status;
    struct plan_head head;
    struct plan_seal seal;
    struct mlo_digest digest;
    *out = (struct mlo_plan_info){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return mlo_error_errno(err, errno, "cannot open %s", path);
    MLO_TRY(plan_read_ends(fd, path, &head, &seal, &out->is_signed, err));
    out->content_bytes = head.content_bytes;
    out->head_bytes = head.head_bytes;
    out->file_bytes = head.content_bytes + (out->is_signed ? sizeof seal : 0);
    if (verify || !out->is_signed)
        MLO_TRY(plan_hash(fd, head.content_bytes, NULL, NULL, &digest, err));
    if (out->is_signed) {
        out->signer = seal.signer;
        out->digest = seal.digest;
        if (verify && (!mlo_digest_eq(&digest, &seal.digest) || !plan_seal_holds(&seal))) {
            status = mlo_error_set(err, MLO_EDIGEST, "the plan %s was changed after it was signed", path);
            goto out;
        }
    } else {
        out->digest = digest;
    }
    status = plan_read_fingerprint(fd, &head, &out->fingerprint, err);
out:
    close(fd);
    if (status != MLO_OK)
        mlo_plan_info_clear(out);
    return status;
}

void mlo_plan_info_clear(struct mlo_plan_info *info)
{
    json_decref(info->fingerprint);
    *info = (struct mlo_plan_info){0};
}
