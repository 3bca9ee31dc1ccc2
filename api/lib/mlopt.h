/* libmlopt: load a model and run it, from C or anything that can call C.
 *
 *     struct mlopt_session *session;
 *     struct mlopt_error error;
 *     struct mlopt_tensor y = {0}, x = {.type = MLOPT_FLOAT32, .rank = 4, .dims = {1, 1, 28, 28}};
 *     x.data = pixels;
 *     x.size_bytes = sizeof pixels;
 *     if (mlopt_session_open("model.onnx", NULL, &session, &error) != MLOPT_OK ||
 *         mlopt_session_run(session, &x, 1, &y, 1, &error) != MLOPT_OK)
 *         fprintf(stderr, "%s\n", error.message);
 *     mlopt_tensor_clear(&y);
 *     mlopt_session_close(session);
 *
 * Stability. What this header declares keeps its meaning and its layout for all of MLOPT_1.x: symbols carry
 * the version MLOPT_1.0, nothing else is exported, and structs that may grow begin with their size.
 *
 * Threads. Every function may be called from any thread. One session may be used by many threads at once:
 * calls that run at the same time get buffers of their own, and share weights and compiled plans. Only
 * mlopt_session_close must come when no other call on that session is running. Structs of the caller
 * (tensors, errors, options) belong to one thread at a time. The library changes no state of the process: no
 * signal handlers, no locale, no rounding or flush-to-zero mode, nothing is printed. Opening
 * a model may start the system's C compiler as a child process, to compile chains of elementwise nodes; the
 * environment variable MLOPT_CODEGEN=off prevents that.
 *
 * Shapes. A session takes inputs of any shape that the model allows, and compiles a plan for each combination
 * when it comes first (mlopt_session_prepare does it ahead of time). Plans are exact: nothing is padded. */
#ifndef MLOPT_H
#define MLOPT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MLOPT_API_MAJOR 1
#define MLOPT_API_MINOR 0

#if defined(__GNUC__)
#define MLOPT_API __attribute__((visibility("default")))
#else
#define MLOPT_API
#endif

enum { MLOPT_MAX_RANK = 8 };

/* What every function that can fail returns: 0, or one of these. */
enum mlopt_status {
    MLOPT_OK = 0,
    MLOPT_INVALID = 1,     /* an argument is wrong: a shape, a type, an option */
    MLOPT_FORMAT = 2,      /* the file is not what it claims to be */
    MLOPT_UNSUPPORTED = 3, /* the model is well-formed, but something in it is not supported */
    MLOPT_NOT_FOUND = 4,   /* no such file, engine, input… */
    MLOPT_NO_MEMORY = 5,
    MLOPT_IO = 6,
    MLOPT_UNAVAILABLE = 7, /* the engine cannot run on this machine; a plan was made for another one */
    MLOPT_TOO_BIG = 8,     /* beyond a limit that protects the process */
    MLOPT_REFUSED = 9,     /* bytes or a signature are not what they should be */
    MLOPT_INTERNAL = 10    /* a bug in mlopt */
};

/* What failed, for people. Filled on failure only; the caller's memory. */
struct mlopt_error {
    enum mlopt_status status;
    char message[512]; /* what failed and why */
    char where[256];   /* the place it concerns: "node 'conv1'"; or "" */
    char hint[384];    /* what to do next; or "" */
};

/* The numbers are those of ONNX. */
enum mlopt_type {
    MLOPT_FLOAT32 = 1,
    MLOPT_UINT8 = 2,
    MLOPT_INT8 = 3,
    MLOPT_UINT16 = 4,
    MLOPT_INT16 = 5,
    MLOPT_INT32 = 6,
    MLOPT_INT64 = 7,
    MLOPT_BOOL = 9,
    MLOPT_FLOAT16 = 10,
    MLOPT_FLOAT64 = 11,
    MLOPT_UINT32 = 12,
    MLOPT_UINT64 = 13,
    MLOPT_BFLOAT16 = 16
};

/* A dense, row-major tensor. */
struct mlopt_tensor {
    enum mlopt_type type;
    int32_t rank; /* 0: a scalar; at most MLOPT_MAX_RANK */
    int64_t dims[MLOPT_MAX_RANK];
    void *data;
    size_t size_bytes;
    int32_t owned; /* data is the library's: mlopt_tensor_clear frees it */
};

struct mlopt_options {
    size_t struct_size; /* sizeof(struct mlopt_options): MLOPT_OPTIONS_INIT sets it */
    const char *engine; /* "cpu" (NULL), "reference", … */
    uint32_t threads;   /* of each call; 0: 1. Calls that run at once have so many each */
    uint32_t optimize;  /* 0: fold and fuse when a model is opened; 1: run it as it is */
    uint32_t max_plans; /* compiled for different shapes and kept; 0: 32 */
    uint32_t max_idle;  /* sets of buffers kept for each plan; 0: one per CPU */
    uint64_t max_bytes; /* of all that; 0: 1 GiB */
    /* Public keys ("ed25519:…", one a line) whose plan files are loaded, besides those that the user trusts;
     * or NULL */
    const char *trusted_keys;
};
#define MLOPT_OPTIONS_INIT                                                                                   \
    {                                                                                                        \
        sizeof(struct mlopt_options), NULL, 0, 0, 0, 0, 0, NULL                                              \
    }

/* An input or output of the model. */
struct mlopt_port {
    const char *name; /* borrowed from the session, as all text here */
    int32_t type;     /* enum mlopt_type, or the ONNX number of a type that cannot be passed; 0: unknown */
    int32_t rank;     /* -1: unknown */
    int64_t dims[MLOPT_MAX_RANK];          /* -1: any size */
    const char *dim_names[MLOPT_MAX_RANK]; /* of an open dim, or NULL. Equal names have equal sizes */
};

struct mlopt_stats {
    size_t struct_size;               /* sizeof(struct mlopt_stats), set by the caller */
    uint64_t plans, programs;         /* compiled shapes and sets of buffers there now */
    uint64_t bytes;                   /* their memory, packed weights included */
    uint64_t runs, compiled, evicted; /* since the session was opened */
};

struct mlopt_session;

/* "0.1.0 (cpu 1 (oneDNN 2.6.0))": the program's version and its engine's. */
MLOPT_API const char *mlopt_version(void);
/* "invalid", "format", …; never NULL. */
MLOPT_API const char *mlopt_status_name(enum mlopt_status status);
/* Bytes of one element; 0 for a type that cannot be passed. */
MLOPT_API size_t mlopt_type_size(enum mlopt_type type);
/* NumPy's name: "float32"; "unknown". */
MLOPT_API const char *mlopt_type_name(enum mlopt_type type);

/* Opens an ONNX file (external data is read from beside it), or a plan that `mlopt compile` made of one. A
 * plan is mapped, and ready to run, but takes the shapes that it was compiled for only; it is native code, so
 * it must be signed by a key that is trusted (MLOPT_REFUSED), and made for this machine and version
 * (MLOPT_UNAVAILABLE: open the model instead). Of the options a plan reads max_idle and trusted_keys. options
 * may be NULL, and error too, here and below. Close *session. */
MLOPT_API enum mlopt_status mlopt_session_open(const char *path, const struct mlopt_options *options,
                                               struct mlopt_session **session, struct mlopt_error *error);
/* The same from memory, which is needed no longer than the call. */
MLOPT_API enum mlopt_status mlopt_session_open_memory(const void *bytes, size_t size_bytes,
                                                      const struct mlopt_options *options,
                                                      struct mlopt_session **session,
                                                      struct mlopt_error *error);
/* NULL is fine. */
MLOPT_API void mlopt_session_close(struct mlopt_session *session);

/* Inputs that a caller feeds, and outputs, in the order of the file. */
MLOPT_API size_t mlopt_session_input_count(const struct mlopt_session *session);
MLOPT_API size_t mlopt_session_output_count(const struct mlopt_session *session);
/* 0, or MLOPT_NOT_FOUND when there are not so many. */
MLOPT_API enum mlopt_status mlopt_session_input(const struct mlopt_session *session, size_t index,
                                                struct mlopt_port *port);
MLOPT_API enum mlopt_status mlopt_session_output(const struct mlopt_session *session, size_t index,
                                                 struct mlopt_port *port);

/* Compiles for the shapes of these inputs, whose data is not read, and says what the outputs will be: type,
 * rank, dims and size_bytes, data NULL; rank -1 where only a run tells. */
MLOPT_API enum mlopt_status mlopt_session_prepare(struct mlopt_session *session,
                                                  const struct mlopt_tensor *inputs, size_t input_count,
                                                  struct mlopt_tensor *outputs, size_t output_count,
                                                  struct mlopt_error *error);
/* Runs the model once, and returns when the outputs are there. An output whose data is set is written into
 * that memory: size_bytes says how much there is, and is set to how much was used (MLOPT_INVALID when it is
 * too little). One whose data is NULL is allocated: mlopt_tensor_clear it, or leave it there for the next
 * run, which writes into it when the shape is the same. Type, rank and dims are set. */
MLOPT_API enum mlopt_status mlopt_session_run(struct mlopt_session *session,
                                              const struct mlopt_tensor *inputs, size_t input_count,
                                              struct mlopt_tensor *outputs, size_t output_count,
                                              struct mlopt_error *error);
/* Frees data that is the library's, and zeroes the struct. */
MLOPT_API void mlopt_tensor_clear(struct mlopt_tensor *tensor);

MLOPT_API enum mlopt_status mlopt_session_stats(struct mlopt_session *session, struct mlopt_stats *stats);
/* How the model runs with inputs of these shapes: JSON, as `mlopt inspect --plan -o json` has it. Free *text
 * with mlopt_free. */
MLOPT_API enum mlopt_status mlopt_session_describe(struct mlopt_session *session,
                                                   const struct mlopt_tensor *inputs, size_t input_count,
                                                   char **text, struct mlopt_error *error);
MLOPT_API void mlopt_free(void *memory);

#ifdef __cplusplus
}
#endif

#endif
