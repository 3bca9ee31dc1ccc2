#include <stdio.h>
#include <string.h>

#include "api/cli/local/local_impl.h"

static enum mlo_status print_layers(const json_t *sparsity, struct mlo_error *err)
{
    struct mlo_table table;
    size_t i;
    json_t *row;
    mlo_table_init(&table, "layer|chosen by|weights>|zero>|error of the weights>|of the outputs>");
    json_array_foreach(json_object_get(sparsity, "layers"), i, row)
    {
        char weights[24], zero[24], error[24], output[24] = "not known";
        snprintf(weights, sizeof weights, "%lld", (long long)mlo_json_i64(row, "weights", 0));
        snprintf(zero, sizeof zero, "%.1f%%", 100 * mlo_json_f64(row, "sparsity", 0));
        snprintf(error, sizeof error, "%.4f", mlo_json_f64(row, "weight_error", 0));
        if (json_is_number(json_object_get(row, "output_error")))
            snprintf(output, sizeof output, "%.4f", mlo_json_f64(row, "output_error", 0));
        mlo_table_row(&table, mlo_json_str(row, "node", ""), mlo_json_str(row, "criterion", ""), weights,
                      zero, error, output);
    }
    return mlo_table_print_take(&table, err);
}

static enum mlo_status print_speed(const json_t *sparsity, struct mlo_error *err)
{
    struct mlo_table table;
    size_t i;
    json_t *row;
    mlo_table_init(&table, "runtime|target|type|faster|of the multiply-adds>|rule");
    json_array_foreach(json_object_get(sparsity, "speed"), i, row)
    {
        char share[24];
        snprintf(share, sizeof share, "%.1f%%", 100 * mlo_json_f64(row, "multiply_adds_share", 0));
        mlo_table_row(&table, mlo_json_str(row, "runtime", ""), mlo_json_str(row, "target", ""),
                      mlo_json_str(row, "type", ""), mlo_json_str(row, "faster", ""), share,
                      mlo_json_str(row, "rule", ""));
    }
    return mlo_table_print_take(&table, err);
}

enum mlo_status mlo_local_print_sparsity(const struct mlo_cli *cli, const json_t *report,
                                         struct mlo_error *err)
{
    enum mlo_status status;
    const json_t *sparsity = json_object_get(report, "sparsity");
    MLO_TRY(print_layers(sparsity, err));
    MLO_TRY(print_speed(sparsity, err));
    mlo_local_note_left(cli, report, "sparsity", "stays dense", "sparsify");
    const json_t *storage = json_object_get(sparsity, "storage");
    if (mlo_json_i64(storage, "tensors", 0) > 0)
        MLO_TRY(mlo_cli_print(err, "stored as bitmap: %lld tensors, %lld bytes instead of %lld\n",
                              (long long)mlo_json_i64(storage, "tensors", 0),
                              (long long)mlo_json_i64(storage, "bytes_after", 0),
                              (long long)mlo_json_i64(storage, "bytes_before", 0)));
    MLO_TRY(mlo_cli_print(err, "weights %lld, %.1f%% of them zero; not faster on the engine cpu\n",
                          (long long)mlo_json_i64(sparsity, "weights", 0),
                          100 * mlo_json_f64(sparsity, "sparsity", 0)));
out:
    return status;
}
