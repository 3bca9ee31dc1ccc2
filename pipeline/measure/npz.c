/* .npz: a zip archive with one .npy file per array. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <zip.h>

#include "pipeline/measure/arrays_impl.h"
#include "pipeline/measure/measure.h"
#include "pipeline/measure/npy_impl.h"

enum { MEMBERS_MAX = 4096 };

static enum mlo_status zip_failed(struct zip_error *z, const char *what, const char *path,
                                  struct mlo_error *err)
{
    int system = zip_error_code_system(z);
    if (zip_error_code_zip(z) == ZIP_ER_MEMORY)
        return mlo_error_nomem(err);
    if (zip_error_system_type(z) == ZIP_ET_SYS && system)
        return mlo_error_errno(err, system, "cannot %s %s", what, path);
    return mlo_error_set(err, MLO_EFORMAT, "cannot %s %s: %s", what, path, zip_error_strerror(z));
}

/* Names are keys only, nothing is ever unpacked to disk; one that looks like a path out of here is not ours.
 */
static bool name_is_plain(const char *name)
{
    if (name[0] == '/' || strchr(name, '\\'))
        return false;
    for (const char *p = name; p; p = strchr(p, '/') ? strchr(p, '/') + 1 : NULL)
        if (strncmp(p, "..", 2) == 0 && (p[2] == '/' || p[2] == '\0'))
            return false;
    return true;
}

static enum mlo_status check_member(const struct zip_stat *st, uint64_t file_bytes, struct mlo_error *err)
{
    const uint64_t need = ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD;
    if ((st->valid & need) != need)
        return mlo_error_set(err, MLO_EFORMAT, "'%s' has no sizes in the archive's directory", st->name);
    if ((st->valid & ZIP_STAT_ENCRYPTION_METHOD) && st->encryption_method != ZIP_EM_NONE)
        return mlo_error_set(err, MLO_EUNSUPPORTED, "'%s' is encrypted", st->name);
    if (st->comp_method != ZIP_CM_STORE && st->comp_method != ZIP_CM_DEFLATE)
        return mlo_error_set(err, MLO_EUNSUPPORTED,
                             "'%s' is compressed by method %d; only stored and deflated arrays are read",
                             st->name, st->comp_method);
    if (st->comp_size > file_bytes || (st->comp_method == ZIP_CM_STORE && st->comp_size != st->size))
        return mlo_error_set(err, MLO_EFORMAT, "'%s' declares sizes that do not fit the archive", st->name);
    return mlo_stream_check_ratio(st->name, st->size, st->comp_size, err);
}

static enum mlo_status read_header(struct mlo_array *array, uint64_t member_bytes, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    uint8_t preamble[MLO_NPY_PREAMBLE];
    size_t offset = 0, size = 0;
    uint64_t data_bytes = 0;
    struct mlo_npy_header header;
    char *text = NULL;
    if (member_bytes < sizeof preamble)
        return mlo_error_set(err, MLO_EFORMAT, "it is too short for an .npy header");
    MLO_TRY(mlo_stream_read_at(array->stream, 0, preamble, sizeof preamble, err));
    MLO_TRY(mlo_npy_preamble(preamble, &offset, &size, err));
    if (offset + size > member_bytes)
        return mlo_error_set(err, MLO_EFORMAT, "it ends inside its .npy header");
    text = malloc(size + 1);
    if (!text)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_stream_read_at(array->stream, offset, text, size, err));
    MLO_TRY(mlo_npy_parse(text, size, &header, err));
    array->data_offset = offset + size;
    array->rank = header.rank;
    memcpy(array->dims, header.dims, sizeof array->dims);
    array->dtype = header.dtype;
    array->refusal = header.refusal;
    if (array->dtype == MLO_DTYPE_NONE)
        goto out;
    MLO_TRY(mlo_array_size(array, &data_bytes, err));
    if (data_bytes != member_bytes - array->data_offset) {
        bool more = data_bytes < member_bytes - array->data_offset;
        status = mlo_error_set(
            err, MLO_EFORMAT, "its .npy header declares %llu bytes of data, but the archive holds %llu%s",
            (unsigned long long)data_bytes, (unsigned long long)(member_bytes - array->data_offset),
            more ? "" : ": it is truncated");
        goto out;
    }
    if (header.fortran_order) {
        array->dtype = MLO_DTYPE_NONE;
        mlo_error_set(&array->refusal, MLO_EUNSUPPORTED, "it is stored in Fortran (column-major) order");
        mlo_error_hint(&array->refusal, "save it as numpy.ascontiguousarray(a)");
    }
out:
    free(text);
    return status;
}

static enum mlo_status open_member(struct mlo_arrays *arrays, uint64_t index, const struct zip_stat *st,
                                   const char *path, void *arg, struct mlo_error *err)
{
    MLO_UNUSED(arg);
    enum mlo_status status = MLO_OK;
    struct mlo_array *array;
    struct mlo_buf label = MLO_BUF_INIT;
    char *name = strndup(st->name, strlen(st->name) - strlen(".npy"));
    if (!name)
        return mlo_error_nomem(err);
    mlo_buf_printf(&label, "array '%s' of %s", name, path);
    MLO_TRY(mlo_arrays_add(arrays, name, &array, err));
    MLO_TRY(mlo_stream_open_member(arrays->archive, index, st->comp_method == ZIP_CM_STORE,
                                   mlo_buf_str(&label), &array->stream, err));
    MLO_TRY(read_header(array, st->size, err));
out:
    if (status != MLO_OK)
        mlo_error_where(err, "array '%s' of %s", name, path);
    free(name);
    mlo_buf_clear(&label);
    return status;
}

static enum mlo_status open_archive(const char *path, struct zip **out, struct mlo_error *err)
{
    int code = 0;
    *out = zip_open(path, ZIP_RDONLY, &code);
    if (*out)
        return MLO_OK;
    struct zip_error z;
    zip_error_init_with_code(&z, code);
    enum mlo_status status = zip_failed(&z, "open", path, err);
    zip_error_fini(&z);
    if (status == MLO_EFORMAT)
        mlo_error_hint(err,
                       "an .npz file is a zip archive written by numpy.savez; this one is truncated, damaged "
                       "or something else");
    return status;
}

typedef enum mlo_status member_fn(struct mlo_arrays *arrays, uint64_t index, const struct zip_stat *st,
                                  const char *path, void *arg, struct mlo_error *err);

/* Calls fn for every member that is an array of ours. */
static enum mlo_status each_member(struct mlo_arrays *arrays, const char *path, member_fn *fn, void *arg,
                                   struct mlo_error *err)
{
    zip_int64_t members = zip_get_num_entries(arrays->archive, 0);
    if (members > MEMBERS_MAX)
        return mlo_error_set(err, MLO_ETOOBIG, "%s holds %lld files; the limit is %d", path,
                             (long long)members, MEMBERS_MAX);
    for (zip_int64_t i = 0; i < members; i++) {
        struct zip_stat st;
        zip_stat_init(&st);
        if (zip_stat_index(arrays->archive, (zip_uint64_t)i, 0, &st) != 0)
            return zip_failed(zip_get_error(arrays->archive), "read the directory of", path, err);
        if (!(st.valid & ZIP_STAT_NAME) || !mlo_str_ends(st.name, ".npy") || !name_is_plain(st.name))
            continue;
        enum mlo_status status = fn(arrays, (uint64_t)i, &st, path, arg, err);
        if (status != MLO_OK)
            return status;
    }
    return MLO_OK;
}

struct survey {
    uint64_t file_bytes, declared, compressed;
};

static enum mlo_status survey_member(struct mlo_arrays *arrays, uint64_t index, const struct zip_stat *st,
                                     const char *path, void *arg, struct mlo_error *err)
{
    struct survey *survey = arg;
    MLO_UNUSED(arrays);
    MLO_UNUSED(index);
    enum mlo_status status = check_member(st, survey->file_bytes, err);
    if (status != MLO_OK)
        return status;
    survey->declared += st->size;
    survey->compressed += st->comp_size;
    if (survey->compressed > survey->file_bytes)
        return mlo_error_set(err, MLO_ETOOBIG, "the files inside %s overlap: refused as a decompression bomb",
                             path);
    return MLO_OK;
}

enum mlo_status mlo_npz_open(const char *path, struct mlo_arrays *arrays, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct survey survey = {0};
    MLO_TRY(open_archive(path, &arrays->archive, err));
    survey.file_bytes = (uint64_t)MLO_MAX(mlo_fs_size(path), (int64_t)0);
    /* all sizes first: no byte is inflated before they are known to be sane */
    MLO_TRY(each_member(arrays, path, survey_member, &survey, err));
    MLO_TRY(mlo_stream_check_ratio(path, survey.declared, survey.compressed, err));
    MLO_TRY(each_member(arrays, path, open_member, NULL, err));
    if (!arrays->count) {
        status = mlo_error_set(err, MLO_EFORMAT, "%s is a zip archive without .npy arrays", path);
        mlo_error_hint(err, "write it with numpy.savez(path, x=inputs, y=labels)");
    }
out:
    if (status != MLO_OK)
        mlo_error_where(err, "%s", path);
    return status;
}

/* --- writing ------------------------------------------------------------------------------------------- */

struct pending { /* what must live until zip_close has written it */
    struct mlo_buf header;
    struct mlo_tensor converted;
    struct zip_buffer_fragment pieces[2];
};

/* numpy has no bfloat16: it is widened to float32, which holds every value of it. */
static enum mlo_status widen(const struct mlo_tensor *from, struct mlo_tensor *out, struct mlo_error *err)
{
    enum mlo_status status = mlo_tensor_init(out, MLO_FLOAT32, from->rank, from->dims, err);
    if (status != MLO_OK)
        return status;
    for (size_t i = 0, n = mlo_tensor_count(from); i < n; i++)
        ((float *)out->data)[i] = mlo_bf16_to_f32(((const uint16_t *)from->data)[i]);
    return MLO_OK;
}

static enum mlo_status add_array(struct zip *archive, const struct mlo_npz_array *array, struct pending *p,
                                 const char *path, struct mlo_error *err)
{
    enum { DOS_DATE_1980_01_01 = 33 }; /* equal arrays give equal bytes, whenever they are written */
    enum mlo_status status = MLO_OK;
    const struct mlo_tensor *tensor = array->tensor;
    struct mlo_buf name = MLO_BUF_INIT;
    if (tensor->dtype == MLO_BFLOAT16) {
        MLO_TRY(widen(tensor, &p->converted, err));
        tensor = &p->converted;
    }
    MLO_TRY(mlo_npy_format(tensor->dtype, tensor->rank, tensor->dims, &p->header, err));
    p->pieces[0] = (struct zip_buffer_fragment){(zip_uint8_t *)p->header.data, p->header.len};
    p->pieces[1] = (struct zip_buffer_fragment){tensor->data, tensor->size_bytes};
    mlo_buf_printf(&name, "%s.npy", array->name);
    struct zip_source *source = zip_source_buffer_fragment(archive, p->pieces, tensor->size_bytes ? 2 : 1, 0);
    zip_int64_t index = source ? zip_file_add(archive, mlo_buf_str(&name), source, ZIP_FL_ENC_UTF_8) : -1;
    if (index < 0) {
        status = zip_failed(zip_get_error(archive), "write", path, err);
        zip_source_free(source);
        goto out;
    }
    if (zip_set_file_compression(archive, (zip_uint64_t)index, ZIP_CM_STORE, 0) != 0 ||
        zip_file_set_dostime(archive, (zip_uint64_t)index, 0, DOS_DATE_1980_01_01, 0) != 0)
        status = zip_failed(zip_get_error(archive), "write", path, err);
out:
    mlo_buf_clear(&name);
    if (status != MLO_OK)
        mlo_error_where(err, "array '%s'", array->name);
    return status;
}

enum mlo_status mlo_npz_write(const char *path, const struct mlo_npz_array *arrays, size_t count,
                              struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int code = 0;
    struct zip *archive = NULL;
    if (!count)
        return mlo_error_set(err, MLO_EINVAL, "%s would hold no array", path);
    struct pending *pending = calloc(count, sizeof *pending);
    if (!pending)
        return mlo_error_nomem(err);
    archive = zip_open(path, ZIP_CREATE | ZIP_TRUNCATE, &code);
    if (!archive) {
        struct zip_error z;
        zip_error_init_with_code(&z, code);
        status = zip_failed(&z, "create", path, err);
        zip_error_fini(&z);
        goto out;
    }
    for (size_t i = 0; i < count; i++)
        MLO_TRY(add_array(archive, &arrays[i], &pending[i], path, err));
    if (zip_close(archive) != 0) { /* writes a temporary file beside it and renames */
        status = zip_failed(zip_get_error(archive), "write", path, err);
        goto out;
    }
    archive = NULL;
out:
    if (archive)
        zip_discard(archive);
    for (size_t i = 0; i < count; i++) {
        mlo_buf_clear(&pending[i].header);
        mlo_tensor_clear(&pending[i].converted);
    }
    free(pending);
    return status;
}
