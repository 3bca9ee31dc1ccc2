/* Runs an ONNX model once, in C: what goes in, what comes out.
 *
 *     cc run.c $(pkg-config --cflags --libs mlopt) -o run && ./run model.onnx [INPUT.raw …]
 *
 * Open dims are taken as 1. An input file holds the tensor's bytes; without one the input is zeros. */
#include <mlopt.h>
#include <stdio.h>
#include <stdlib.h>

static void print_shape(const char *what, const char *name, const struct mlopt_tensor *t)
{
    printf("%s %s: %s[", what, name, mlopt_type_name(t->type));
    for (int d = 0; d < t->rank; d++)
        printf("%s%lld", d ? "," : "", (long long)t->dims[d]);
    printf("]\n");
}

/* Memory for an input, with the bytes of `path` (may be NULL) in it. */
static int fill_input(const struct mlopt_port *port, const char *path, struct mlopt_tensor *t)
{
    size_t count = 1;
    t->type = (enum mlopt_type)port->type;
    t->rank = port->rank;
    for (int d = 0; d < port->rank; d++) {
        t->dims[d] = port->dims[d] < 0 ? 1 : port->dims[d];
        count *= (size_t)t->dims[d];
    }
    t->size_bytes = count * mlopt_type_size(t->type);
    t->data = calloc(1, t->size_bytes + 1);
    if (!t->data)
        return -1;
    FILE *file = path ? fopen(path, "rb") : NULL;
    size_t got = file ? fread(t->data, 1, t->size_bytes + 1, file) : t->size_bytes;
    if (file)
        fclose(file);
    if ((path && !file) || got != t->size_bytes) {
        fprintf(stderr, "%s does not hold the %zu bytes of input %s\n", path, t->size_bytes, port->name);
        return -1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct mlopt_session *session = NULL;
    struct mlopt_error error;
    struct mlopt_port port;
    struct mlopt_tensor inputs[8] = {{0}}, outputs[8] = {{0}};
    int status = 1;
    if (argc < 2) {
        fprintf(stderr, "usage: run model.onnx [INPUT.raw ...]\n");
        return 2;
    }
    printf("mlopt %s\n", mlopt_version());
    if (mlopt_session_open(argv[1], NULL, &session, &error) != MLOPT_OK)
        goto failed;
    size_t in = mlopt_session_input_count(session), out = mlopt_session_output_count(session);
    if (in > 8 || out > 8) {
        fprintf(stderr, "this example has room for 8 inputs and outputs\n");
        goto done;
    }
    for (size_t i = 0; i < in; i++) {
        mlopt_session_input(session, i, &port);
        if (fill_input(&port, (int)i + 2 < argc ? argv[i + 2] : NULL, &inputs[i]) != 0)
            goto done;
        print_shape("input", port.name, &inputs[i]);
    }
    if (mlopt_session_run(session, inputs, in, outputs, out, &error) != MLOPT_OK)
        goto failed;
    for (size_t i = 0; i < out; i++) {
        mlopt_session_output(session, i, &port);
        print_shape("output", port.name, &outputs[i]);
        const float *y = outputs[i].data;
        for (size_t k = 0; outputs[i].type == MLOPT_FLOAT32 && k < 10 && k < outputs[i].size_bytes / 4; k++)
            printf(" %.6g", (double)y[k]);
        printf("\n");
    }
    status = 0;
    goto done;
failed:
    fprintf(stderr, "%s: %s%s%s\n%s%s", mlopt_status_name(error.status), error.message,
            *error.where ? " at " : "", error.where, error.hint, *error.hint ? "\n" : "");
done:
    for (int i = 0; i < 8; i++) {
        free(inputs[i].data);
        mlopt_tensor_clear(&outputs[i]);
    }
    mlopt_session_close(session);
    return status;
}
