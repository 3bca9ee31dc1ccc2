/* Files of other formats, told by their content, with the command that makes an ONNX file of them. */
#include <string.h>

#include "graph/onnx_impl.h"

struct probe {
    const uint8_t *bytes;
    size_t size;
};

static bool begins(const struct probe *p, const void *magic, size_t size)
{
    return p->size >= size && memcmp(p->bytes, magic, size) == 0;
}

/* Zip archives list their members at the end, and start with the first. */
static bool near_ends(const struct probe *p, const char *text)
{
    size_t window = MLO_MIN(p->size, (size_t)256 * 1024);
    return memmem(p->bytes, window, text, strlen(text)) ||
           memmem(p->bytes + p->size - window, window, text, strlen(text));
}

static bool is_zip(const struct probe *p)
{
    return begins(p, "PK\3\4", 4);
}

static bool is_pt2(const struct probe *p)
{
    return is_zip(p) && (near_ends(p, "serialized_exported_program") || near_ends(p, "archive_format") ||
                         near_ends(p, "models/model.json"));
}

static bool is_torch_zip(const struct probe *p)
{
    return is_zip(p) && near_ends(p, "/data.pkl");
}

static bool is_pickle(const struct probe *p)
{
    return p->size > 2 && p->bytes[0] == 0x80 && p->bytes[1] >= 2 && p->bytes[1] <= 5;
}

static bool is_safetensors(const struct probe *p)
{
    uint64_t header = 0;
    if (p->size < 9 || p->bytes[8] != '{')
        return false;
    for (int i = 7; i >= 0; i--)
        header = header << 8 | p->bytes[i];
    return header >= 2 && header < (uint64_t)100 << 20;
}

static bool is_keras_zip(const struct probe *p)
{
    return is_zip(p) && near_ends(p, "model.weights.h5");
}

static bool is_hdf5(const struct probe *p)
{
    return begins(p, "\x89HDF\r\n\x1a\n", 8);
}

static bool is_saved_model(const struct probe *p)
{
    return near_ends(p, "saved_model") || near_ends(p, "serving_default");
}

static bool is_tflite(const struct probe *p)
{
    return p->size > 8 && memcmp(p->bytes + 4, "TFL3", 4) == 0;
}

static bool is_npz(const struct probe *p)
{
    return is_zip(p) && near_ends(p, ".npy");
}

static bool is_gzip(const struct probe *p)
{
    return begins(p, "\x1f\x8b", 2);
}

static bool is_lfs(const struct probe *p)
{
    return begins(p, "version https://git-lfs", 23);
}

static bool is_markup(const struct probe *p)
{
    return begins(p, "<!DOCTYPE", 9) || begins(p, "<!doctype", 9) || begins(p, "<html", 5) ||
           begins(p, "<?xml", 5);
}

#define TORCH_EXPORT                                                                                         \
    "export it where its Python class is: python3 -c \"import torch; m = torch.load('%s', "                  \
    "weights_only=False).eval(); torch.onnx.export(m, (torch.zeros(1, 3, 224, 224),), 'model.onnx', "        \
    "input_names=['x'], dynamic_axes={'x': {0: 'batch'}})\" (use your input's shape)"
#define WEIGHTS_EXPORT                                                                                       \
    "load the weights of %s into the model's class in Python, then: torch.onnx.export(model.eval(), "        \
    "(torch.zeros(1, 3, 224, 224),), 'model.onnx', input_names=['x'], dynamic_axes={'x': {0: 'batch'}})"

static const struct {
    bool (*is)(const struct probe *p);
    const char *what, *hint; /* the hint's %s is the file's name */
} formats[] = {
    {is_pt2, "a PyTorch exported program (.pt2)",
     "turn it into ONNX: python3 -c \"import torch; p = torch.export.load('%s'); torch.onnx.export(p, "
     "f='model.onnx', dynamo=True)\""},
    {is_torch_zip, "a PyTorch file (.pt/.pth)", TORCH_EXPORT},
    {is_pickle, "a Python pickle, as older PyTorch files (.pt/.pth) are", TORCH_EXPORT},
    {is_safetensors, "a safetensors file, which holds weights and no graph", WEIGHTS_EXPORT},
    {is_keras_zip, "a Keras model (.keras)",
     "turn it into ONNX: python3 -c \"import keras; keras.saving.load_model('%s').export('model.onnx', "
     "format='onnx')\""},
    {is_hdf5, "an HDF5 file, as Keras models (.h5) are",
     "turn it into ONNX: python3 -c \"import keras; keras.saving.load_model('%s').export('model.onnx', "
     "format='onnx')\""},
    {is_tflite, "a TensorFlow Lite model",
     "turn it into ONNX: python3 -m tf2onnx.convert --tflite %s --output model.onnx"},
    {is_npz, "a NumPy archive (.npz): data, not a model", "push %s as a dataset"},
    {is_gzip, "compressed by gzip", "unpack it first: gunzip %s"},
    {is_lfs, "a Git LFS pointer, not the file itself", "fetch the content of %s: git lfs pull"},
    {is_markup, "an HTML or XML page", "%s seems to be a saved web page: download the file itself"},
    {is_zip, "a zip archive", "unpack %s first"},
    {is_saved_model, "a TensorFlow SavedModel",
     "turn its folder into ONNX: python3 -m tf2onnx.convert --saved-model DIR --output model.onnx (DIR holds "
     "%s)"},
};

enum mlo_status mlo_onnx_check_foreign(const void *bytes, size_t size, const char *name,
                                       struct mlo_error *err)
{
    struct probe p = {bytes, size};
    for (size_t i = 0; size && i < MLO_COUNT(formats); i++) {
        if (!formats[i].is(&p))
            continue;
        enum mlo_status status =
            mlo_error_set(err, MLO_EFORMAT, "%.200s is no ONNX model but %s", name, formats[i].what);
        mlo_error_where(err, "%.200s", name);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        mlo_error_hint(err, formats[i].hint, mlo_fs_basename(name));
#pragma GCC diagnostic pop
        return status;
    }
    return MLO_OK;
}
