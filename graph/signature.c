#include "graph/signature.h"

static json_t *shape_json(const struct mlo_type *type)
{
    if (type->rank < 0)
        return json_null();
    json_t *shape = json_array();
    for (int i = 0; i < type->rank; i++) {
        const struct mlo_dim *dim = &type->dims[i];
        json_array_append_new(shape, dim->value >= 0           ? json_integer(dim->value)
                                     : dim->name && *dim->name ? json_string(dim->name)
                                                               : json_null());
    }
    return shape;
}

static json_t *type_json(const struct mlo_type *type)
{
    char text[64];
    if (type->element) {
        snprintf(text, sizeof text, "sequence(%s)", mlo_dtype_name(type->element->dtype));
        return json_string(text);
    }
    return type->dtype == MLO_DTYPE_NONE ? json_null() : json_string(mlo_dtype_name(type->dtype));
}

static bool append(json_t *list, const struct mlo_value *value, bool optional)
{
    json_t *row = json_pack("{s:s, s:o, s:o}", "name", value->name, "type", type_json(&value->type), "shape",
                            shape_json(&value->type));
    if (row && optional)
        json_object_set_new(row, "optional", json_true());
    return row && json_array_append_new(list, row) == 0;
}

enum mlo_status mlo_model_signature(const struct mlo_model *model, json_t **out, struct mlo_error *err)
{
    const struct mlo_graph *graph = model->graph;
    json_t *inputs = json_array(), *outputs = json_array();
    bool fine = inputs && outputs;
    *out = NULL;
    for (int i = 0; fine && i < graph->input_count; i++)
        fine = append(inputs, graph->inputs[i], graph->inputs[i]->constant != NULL);
    for (int i = 0; fine && i < graph->output_count; i++)
        fine = append(outputs, graph->outputs[i], false);
    if (fine)
        *out = json_pack("{s:O, s:O}", "inputs", inputs, "outputs", outputs);
    json_decref(inputs);
    json_decref(outputs);
    return *out ? MLO_OK : mlo_error_set(err, MLO_EFORMAT, "a name in the model is not UTF-8");
}
