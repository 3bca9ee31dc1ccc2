/* Built and run by the build: api/openapi.yaml -> the contract as JSON and the table of its operations, in C.
 *   openapi_table openapi.yaml out.c
 * An operation names its handler: h_<operationId>, or x-handler where several share one. The table takes the
 * handler's address, so that an operation without one does not compile or link. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/yaml.h"

enum { FILE_MAX = 8 << 20 };

static const char *const METHODS[] = {"get", "head", "post", "put", "patch", "delete"};
static const char *const ROLES[] = {"open", "viewer", "submitter", "promoter", "approver", "admin"};

static bool identifier(const char *text)
{
    for (const char *c = text; *c; c++)
        if (!islower((unsigned char)*c) && !isdigit((unsigned char)*c) && *c != '_')
            return false;
    return *text != '\0';
}

static bool known(const char *word, const char *const *words, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(word, words[i]) == 0)
            return true;
    return false;
}

static void upper(const char *from, char out[16])
{
    size_t i = 0;
    for (; from[i] && i < 15; i++)
        out[i] = (char)toupper((unsigned char)from[i]);
    out[i] = '\0';
}

/* One row; `ids` holds the operationIds that there were. */
static enum mlo_status row(const char *path, const char *method, const json_t *operation, json_t *ids,
                           struct mlo_buf *out, struct mlo_error *err)
{
    const char *id = mlo_json_str(operation, "operationId", ""),
               *role = mlo_json_str(operation, "x-role", "");
    const char *handler = mlo_json_str(operation, "x-handler", "");
    char big[16], role_big[16], named[128];
    snprintf(named, sizeof named, "h_%s", id);
    if (!*handler)
        handler = named;
    if (!identifier(id) || !identifier(handler) || strlen(id) > 100 || json_object_get(ids, id))
        return mlo_error_set(err, MLO_EFORMAT,
                             "%s %s: operationId '%s' is missing, no identifier or used twice", method, path,
                             id);
    if (!known(role, ROLES, MLO_COUNT(ROLES)))
        return mlo_error_set(err, MLO_EFORMAT, "%s %s: x-role '%s' is none of open, viewer … admin", method,
                             path, role);
    if (strpbrk(path, "\"\\\n") || !*mlo_json_str(operation, "summary", "") ||
        !json_object_size(json_object_get(operation, "responses")))
        return mlo_error_set(err, MLO_EFORMAT, "%s %s: no summary or no responses", method, path);
    json_object_set_new(ids, id, json_true());
    bool open = strcmp(role, "open") == 0;
    upper(method, big);
    upper(open ? "viewer" : role, role_big);
    mlo_buf_printf(out, "    {\"%s\", \"%s\", \"%s\", %s, %s, MLO_%s},\n", big, path, id, handler,
                   open ? "true" : "false", role_big);
    return MLO_OK;
}

static enum mlo_status write_rows(const json_t *contract, struct mlo_buf *out, struct mlo_error *err)
{
    json_t *ids = json_object(), *item, *operation;
    const char *path, *method;
    enum mlo_status status = MLO_OK;
    mlo_buf_puts(out, "const struct mlo_operation mlo_openapi_operations[] = {\n");
    json_object_foreach(json_object_get(contract, "paths"), path, item)
    {
        json_object_foreach(item, method, operation)
        {
            if (!known(method, METHODS, MLO_COUNT(METHODS)))
                status = mlo_error_set(err, MLO_EFORMAT, "%s: '%s' is no method", path, method);
            else
                status = row(path, method, operation, ids, out, err);
            if (status != MLO_OK)
                goto out;
        }
    }
    if (json_object_size(ids) == 0)
        status = mlo_error_set(err, MLO_EFORMAT, "there are no paths");
    mlo_buf_puts(out,
                 "};\nconst size_t mlo_openapi_operation_count =\n    sizeof mlo_openapi_operations / sizeof "
                 "*mlo_openapi_operations;\n\n");
out:
    json_decref(ids);
    return status;
}

static enum mlo_status write_text(const json_t *contract, struct mlo_buf *out, struct mlo_error *err)
{
    char *text = json_dumps(contract, JSON_COMPACT);
    if (!text)
        return mlo_error_nomem(err);
    size_t size = strlen(text);
    mlo_buf_puts(out, "static const unsigned char json[] = {");
    for (size_t i = 0; i < size; i++)
        mlo_buf_printf(out, "%s%u,", i % 32 ? "" : "\n    ", (unsigned)(unsigned char)text[i]);
    mlo_buf_printf(out,
                   "\n    10, 0};\nconst char *const mlo_openapi_json = (const char *)json;\n"
                   "const size_t mlo_openapi_json_size = %zu;\n",
                   size + 1);
    free(text);
    return MLO_OK;
}

int main(int argc, char **argv)
{
    struct mlo_error err = {0};
    struct mlo_arena *arena = mlo_arena_new();
    struct mlo_buf text = MLO_BUF_INIT, out = MLO_BUF_INIT;
    struct mlo_yaml *tree;
    json_t *contract = NULL;
    enum mlo_status status = MLO_OK;
    if (argc != 3 || !arena) {
        fprintf(stderr, "usage: openapi_table openapi.yaml out.c\n");
        mlo_arena_free(arena);
        return 2;
    }
    MLO_TRY(mlo_fs_read(argv[1], FILE_MAX, &text, &err));
    MLO_TRY(mlo_yaml_parse(arena, mlo_buf_str(&text), text.len, argv[1], &tree, &err));
    contract = mlo_yaml_to_json(tree);
    mlo_buf_puts(&out, "/* Made from api/openapi.yaml. */\n#include \"api/http/handlers_impl.h\"\n"
                       "#include \"api/http/openapi_impl.h\"\n\n");
    MLO_TRY(contract ? write_rows(contract, &out, &err) : mlo_error_nomem(&err));
    MLO_TRY(write_text(contract, &out, &err));
    MLO_TRY(mlo_fs_write_atomic(argv[2], out.data, out.len, &err));
out:
    if (status != MLO_OK)
        fprintf(stderr, "%s: %s\n", argv[1], err.message);
    json_decref(contract);
    mlo_buf_clear(&text);
    mlo_buf_clear(&out);
    mlo_arena_free(arena);
    return status == MLO_OK ? 0 : 1;
}
