/* Where zeros among weights make a model faster: a row for each runtime, said before anyone is promised a
 * speed-up. Dense kernels multiply zeros like other numbers; sparse tensor cores (compute capability 8.0 and
 * above) skip two of four, in types and shapes that the libraries on top of them ask for. Whether they are
 * faster there is for a measurement to say: the row tells only where they can be. The multiples are
 * an assumption that was not verified: what is published differs by library and version. */
#include <string.h>

#include "passes/sparsify_impl.h"
#include "passes/weight_only_impl.h"

static const struct speed_row {
    const char *runtime, *target, *type;
    int multiple; /* of inputs (of a Conv: its channels in a group) and outputs; 0: never faster */
    const char *rule;
} ROWS[] = {
    {"mlopt", "cpu", "any", 0,
     "the kernels of the engine cpu are dense: zeros are multiplied like other numbers"},
    {"mlopt", "cuda", "any", 0,
     "the engine cuda calls dense kernels: zeros are multiplied like other numbers"},
    {"ONNX Runtime", "cpu", "any", 0,
     "its kernels are dense: sparse weights are unpacked when a model is loaded"},
    {"TensorRT, cuSPARSELt", "cuda:sm80 and above", "float32", 0,
     "sparse tensor cores want one of two in TF32, which 2:4 does not promise"},
    {"TensorRT, cuSPARSELt", "cuda:sm80 and above", "float16", 16,
     "sparse tensor cores take 2:4 along the inputs where inputs and outputs are multiples of 16"},
    {"TensorRT, cuSPARSELt", "cuda:sm80 and above", "int8", 32,
     "sparse tensor cores take 2:4 along the inputs where inputs and outputs are multiples of 32"},
};

/* Outputs and inputs of a group's matrix, of a Conv at one position of its kernel. */
static void sides(const struct mlo_node *node, int64_t *outputs, int64_t *inputs)
{
    struct mlo_weight_layout l = mlo_weight_layout_of(node);
    bool conv = mlo_node_is(node, "Conv");
    const struct mlo_tensor *w = mlo_node_fixed(node, 1);
    *inputs = conv ? w->dims[1] : (int64_t)l.columns;
    *outputs = (int64_t)l.rows / (conv ? mlo_node_attr_i(node, "group", 1) : 1);
}

json_t *mlo_sparse_speed(const char *pattern, const struct mlo_sparse_layer *layers, size_t count,
                         uint64_t all_macs)
{
    json_t *out = json_array();
    bool groups = strcmp(pattern, "2:4") == 0;
    for (size_t i = 0; out && i < MLO_COUNT(ROWS); i++) {
        const struct speed_row *row = &ROWS[i];
        size_t fit = 0;
        uint64_t macs = 0;
        for (size_t k = 0; groups && row->multiple && k < count; k++) {
            int64_t outputs, inputs;
            sides(layers[k].node, &outputs, &inputs);
            if (outputs % row->multiple != 0 || inputs % row->multiple != 0)
                continue;
            fit++;
            macs += layers[k].macs;
        }
        const char *rule = groups || !row->multiple
                               ? row->rule
                               : "zeros anywhere fit no sparse tensor core: it takes 2:4 alone";
        json_t *one =
            json_pack("{s:s,s:s,s:s,s:s,s:I,s:f,s:s}", "runtime", row->runtime, "target", row->target, "type",
                      row->type, "faster", fit ? "possible" : "no", "layers", (json_int_t)fit,
                      "multiply_adds_share", all_macs ? (double)macs / (double)all_macs : 0, "rule", rule);
        if (json_array_append_new(out, one) != 0) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}
