/* The file MLmodel: YAML, as MLflow's model format has it (https://mlflow.org/docs/latest/ml/model/). */
#include <stdlib.h>
#include <string.h>

#include "api/http/mlflow_impl.h"

/* A text in double quotes; all that is not printable ASCII is escaped, so that any YAML reader takes it. */
static void put_text(struct mlo_buf *out, const char *text)
{
    mlo_buf_putc(out, '"');
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        int more = *c >= 0xf0 ? 3 : *c >= 0xe0 ? 2 : *c >= 0xc0 ? 1 : 0;
        unsigned long point = *c;
        if (more)
            point &= 0x3fUL >> more;
        for (; more > 0 && (c[1] & 0xc0) == 0x80; more--)
            point = point << 6 | (*++c & 0x3f);
        if (point == '"' || point == '\\')
            mlo_buf_printf(out, "\\%c", (int)point);
        else if (point >= 0x20 && point < 0x7f)
            mlo_buf_putc(out, (char)point);
        else
            mlo_buf_printf(out, "\\U%08lx", point);
    }
    mlo_buf_putc(out, '"');
}

/* Types that NumPy has too, under the same names. */
static bool numpy_has(const char *type)
{
    static const char *const types[] = {"float32", "float64", "float16", "int8",   "int16",  "int32",
                                        "int64",   "uint8",   "uint16",  "uint32", "uint64", "bool"};
    for (size_t i = 0; i < MLO_COUNT(types); i++)
        if (strcmp(type, types[i]) == 0)
            return true;
    return false;
}

/* A dim that is no number may be any: -1. */
static json_t *shape_of(const json_t *dims)
{
    json_t *shape = json_array(), *dim;
    size_t i;
    json_array_foreach((json_t *)dims, i, dim)
        json_array_append_new(shape, json_is_integer(dim) ? json_copy(dim) : json_integer(-1));
    return shape;
}

/* As MLflow's tensor specs; NULL where it cannot say one: another type, any number of dimensions, an input
 * that may be left out. */
static json_t *specs_of(const json_t *values)
{
    json_t *specs = json_array(), *value;
    size_t i;
    json_array_foreach((json_t *)values, i, value)
    {
        const char *type = mlo_json_str(value, "type", "");
        const json_t *shape = json_object_get(value, "shape");
        if (!numpy_has(type) || !json_is_array(shape) || mlo_json_bool(value, "optional", false)) {
            json_decref(specs);
            return NULL;
        }
        json_array_append_new(specs, json_pack("{s:s, s:{s:s, s:o}, s:O}", "type", "tensor", "tensor-spec",
                                               "dtype", type, "shape", shape_of(shape), "name",
                                               json_object_get(value, "name")));
    }
    return specs;
}

static void put_specs(struct mlo_buf *out, const char *key, const json_t *specs)
{
    char *text = json_dumps(specs, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_SORT_KEYS);
    mlo_buf_printf(out, "  %s: ", key);
    put_text(out, text ? text : "[]");
    mlo_buf_putc(out, '\n');
    free(text);
}

static void put_signature(struct mlo_buf *out, const json_t *signature)
{
    json_t *inputs = specs_of(json_object_get(signature, "inputs")),
           *outputs = specs_of(json_object_get(signature, "outputs"));
    if (json_array_size(inputs) && json_array_size(outputs)) {
        mlo_buf_puts(out, "signature:\n");
        put_specs(out, "inputs", inputs);
        put_specs(out, "outputs", outputs);
        mlo_buf_puts(out, "  params: null\n");
    }
    json_decref(inputs);
    json_decref(outputs);
}

static void put_member(struct mlo_buf *out, const char *key, const char *value)
{
    mlo_buf_puts(out, key);
    put_text(out, value);
    mlo_buf_putc(out, '\n');
}

void mlo_mlmodel_write(const struct mlo_mlmodel *model, struct mlo_buf *out)
{
    mlo_buf_puts(out, "flavors:\n  onnx:\n");
    put_member(out, "    data: ", model->file);
    mlo_buf_puts(out, "  python_function:\n");
    put_member(out, "    data: ", model->file);
    mlo_buf_puts(out, "    loader_module: mlflow.onnx\nmetadata:\n");
    put_member(out, "  mlopt.ref: ", model->ref);
    put_member(out, "  mlopt.digest: ", model->digest);
    mlo_buf_printf(out, "model_size_bytes: %llu\n", (unsigned long long)model->size_bytes);
    put_signature(out, model->signature);
    put_member(out, "utc_time_created: ", model->created_at);
}
