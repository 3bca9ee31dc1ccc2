/* Private to engines/cuda/device: a schedule becomes images for a GPU, and those run.
 *
 * Compiling needs no GPU: own kernels by NVRTC, convolutions and attention by cuDNN for a described device.
 * cuBLASLt does nothing without a GPU; what it computes is chosen when a plan is loaded. */
#ifndef MLO_ENGINES_CUDA_DEVICE_IMPL_H
#define MLO_ENGINES_CUDA_DEVICE_IMPL_H

#include <pthread.h>

#include "engines/cuda/device/libs_impl.h"
#include "engines/cuda/plugin_impl.h"

extern const struct mlo_engine cuda_engine;
extern const char cuda_source_revision[];

/* --- own kernels (nvrtc.c, cubin.c, cache.c) -------------------------------------------------------------
 */

/* What a compiled kernel takes, read from the image itself. */
struct cuda_resources {
    unsigned registers;    /* per thread */
    unsigned frame_bytes;  /* of local memory per thread: more than 0 is a spill or an array */
    unsigned shared_bytes; /* static, per block */
};
/* Reads a cubin (an ELF file for EM_CUDA). MLO_EFORMAT: it is none, is cut off, or has no kernel `entry`. Any
 * bytes are safe. */
MLO_MUST_USE enum mlo_status cuda_cubin_read(const void *bytes, size_t size, const char *entry,
                                             struct cuda_resources *out, struct mlo_error *err);

/* Compiles for a compute capability, or takes what an earlier process compiled: the user's cache has the
 * image under the digest of text, options and NVRTC's version, with its own digest behind it. *image is yours
 * (free). MLO_EINTERNAL, with NVRTC's first lines: the text does not compile. */
MLO_MUST_USE enum mlo_status cuda_compile_text(const struct cuda_source *source, int sm, void **image,
                                               size_t *size_bytes, struct cuda_resources *resources,
                                               struct mlo_error *err);

/* Small files of the user's cache ($XDG_CACHE_HOME/mlopt/cuda), which nobody else may write. What is read is
 * whole: each carries its SHA-256. False: it is not there, or damaged. `out` is appended to. */
bool cuda_cache_get(const struct mlo_digest *key, const char *suffix, struct mlo_buf *out);
void cuda_cache_put(const struct mlo_digest *key, const char *suffix, const void *bytes, size_t size);

/* --- plans ---------------------------------------------------------------------------------------------- */

enum cuda_work_kind {
    CUDA_WORK_KERNEL,   /* image: cubin */
    CUDA_WORK_CUDNN,    /* image: cuDNN's plan as JSON; none: it is asked when the plan is loaded */
    CUDA_WORK_CUBLASLT, /* image: the algorithm's bytes, where one was measured */
    CUDA_WORK_COPY,
    CUDA_WORK_KINDS
};

/* What one or more steps do alike: images are in a plan once. */
struct cuda_work {
    enum cuda_work_kind kind;
    struct mlo_digest key; /* of what it computes */
    int step;              /* the first that does it */
    void *image;
    size_t image_bytes;
    bool owned; /* the image is ours (free), else the file's */
    struct mlo_digest image_digest;
    char entry[64]; /* KERNEL */
    unsigned grid[3], block[3], shared_bytes;
    struct cuda_resources resources;
    int64_t workspace_bytes; /* CUDNN */
    char *choice;            /* CUDNN, CUBLASLT: its id; NULL: the library's first */
    bool measured;           /* the choice is a tuner's, for the step that it was made for */
};
/* How a step's work came to be. */
struct cuda_chosen {
    bool measured; /* by a tuner, for this very step: kernels of other steps may have the same image */
    char *instead; /* what a library said for which an own kernel stands in here; NULL: nothing */
};

struct cuda_device;
struct mlo_plan {
    struct cuda_schedule *schedule;
    int sm;
    char nvrtc[32], cudnn[32]; /* versions that made the images; "" where none did */
    char gpu[128];             /* that its choices were measured on; "": none were */
    struct cuda_work *works;
    int work_count, work_cap;
    int *work_of;               /* by step; under the lock once programs are loaded, which have their own */
    struct cuda_chosen *chosen; /* by step; `instead` under the lock */
    struct mlo_value **inputs;  /* that callers feed */
    int input_count;
    struct mlo_value **observed;
    size_t observed_count;
    pthread_mutex_t lock;
    struct cuda_device *device; /* while programs are loaded; under the lock */
};

/* compile.c */
MLO_MUST_USE enum mlo_status cuda_plan_compile(const struct mlo_model *model,
                                               const struct mlo_compile_options *options,
                                               struct mlo_plan **out, struct mlo_error *err);
void cuda_plan_free(struct mlo_plan *plan);
/* A plan without steps for a schedule, which it takes over; NULL when out of memory (then it does not). */
struct mlo_plan *cuda_plan_new_take(struct cuda_schedule *schedule, int sm);
/* Computes one step by an own kernel from now on, whatever library could do it. */
MLO_MUST_USE enum mlo_status cuda_plan_own_kernel(struct mlo_plan *plan, int step, struct mlo_error *err);
/* Room for one more work a step, so that those that programs read stay where they are. False: out of memory.
 */
bool cuda_plan_reserve(struct mlo_plan *plan);
/* The same where a library cannot (`why`, which is kept for describe). An error names what neither can do. */
MLO_MUST_USE enum mlo_status cuda_plan_stand_in(struct mlo_plan *plan, int step, const struct mlo_error *why,
                                                struct mlo_error *err);
void cuda_work_clear(struct cuda_work *work);
/* Libraries and an own kernel can compute it; else there is one way only. */
bool cuda_step_has_choice(const struct cuda_step *step);

/* save.c */
MLO_MUST_USE enum mlo_status cuda_plan_save(const struct mlo_plan *plan, int fd, struct mlo_error *err);
MLO_MUST_USE enum mlo_status cuda_plan_restore(const void *bytes, size_t size, struct mlo_plan **out,
                                               struct mlo_error *err);

/* --- devices (device.c) --------------------------------------------------------------------------------- */

struct cuda_gpu {
    int index, sm, multiprocessors, driver, clock_khz, memory_clock_khz, memory_bus_bits, l2_bytes;
    char name[128], uuid[48]; /* uuid: "GPU-…", as the driver's management library has it */
    size_t memory_bytes;
};
/* The device that programs run on ($CUDA_VISIBLE_DEVICES' first). MLO_EUNAVAILABLE: there is none. */
MLO_MUST_USE enum mlo_status cuda_gpu_find(struct cuda_gpu *out, struct mlo_error *err);
/* peaks.c: what it can do at most (engines/cuda/tune/tune.h). */
struct cuda_peaks;
MLO_MUST_USE enum mlo_status cuda_device_peaks(const struct cuda_gpu *gpu, struct cuda_peaks *out,
                                               struct mlo_error *err);
MLO_MUST_USE enum mlo_status cuda_inventory(json_t **out, struct mlo_error *err);

/* A plan on the device, shared by its programs. */
struct cuda_device {
    const struct cuda_driver *driver;
    struct cuda_gpu gpu;
    CUdevice handle;
    CUcontext context;
    CUdeviceptr constants;
    CUmodule *modules;     /* by work, with room for one more a step; NULL: none */
    CUfunction *functions; /* by work */
    int works;             /* of which modules are loaded */
    int references;
};
/* The plan's device, made at first need; each get is ended by a put. The context is current then. */
MLO_MUST_USE enum mlo_status cuda_device_get(struct mlo_plan *plan, struct cuda_device **out,
                                             struct mlo_error *err);
void cuda_device_put(struct mlo_plan *plan);
/* The work of a step now, and another one where its library refused it on this device: an own kernel, for the
 * programs that are loaded after this one too. */
int cuda_device_work(struct mlo_plan *plan, int step);
MLO_MUST_USE enum mlo_status cuda_device_stand_in(struct mlo_plan *plan, int step,
                                                  const struct mlo_error *why, int *work,
                                                  struct mlo_error *err);

/* --- programs (program.c) ------------------------------------------------------------------------------- */

struct cuda_dnn_program; /* a cuDNN plan, loaded, with its variant pack */
struct cuda_lt_program;  /* a product's descriptors and algorithm */

struct cuda_step_state {
    void *params[2 * CUDA_STEP_SLOTS]; /* KERNEL: pointers to `pointers` */
    CUdeviceptr pointers[2 * CUDA_STEP_SLOTS];
    struct cuda_dnn_program *dnn;
    struct cuda_lt_program *lt;
};

struct mlo_program {
    struct mlo_plan *plan;
    struct cuda_device *device;
    CUstream stream;
    CUdeviceptr arena, workspace;
    size_t workspace_bytes;
    unsigned char *staging; /* pinned: inputs, then outputs */
    size_t *input_at, *output_at, staging_bytes;
    CUdeviceptr *at;               /* by slot */
    int *work_of;                  /* by step, as it was when it was loaded */
    struct cuda_step_state *steps; /* by step */
    cudnnHandle_t dnn;
    cublasLtHandle_t lt;
    CUgraphExec whole, device_only; /* copies and steps; steps alone (made when they are measured) */
};
MLO_MUST_USE enum mlo_status cuda_program_load(struct mlo_plan *plan, struct mlo_program **out,
                                               struct mlo_error *err);
void cuda_program_unload(struct mlo_program *program);
MLO_MUST_USE enum mlo_status cuda_program_run(struct mlo_program *program, const struct mlo_tensor *inputs,
                                              struct mlo_tensor *outputs, struct mlo_error *err);
MLO_MUST_USE enum mlo_status cuda_program_observe(struct mlo_program *program,
                                                  const struct mlo_tensor *inputs, struct mlo_tensor *outputs,
                                                  mlo_observe_fn *fn, void *arg, struct mlo_error *err);
/* Puts one step on the program's stream. */
MLO_MUST_USE enum mlo_status cuda_program_enqueue(struct mlo_program *program, int step,
                                                  struct mlo_error *err);
/* Inputs into the staging memory and from there to the device; waits for it. */
MLO_MUST_USE enum mlo_status cuda_program_upload(struct mlo_program *program, const struct mlo_tensor *inputs,
                                                 struct mlo_error *err);
/* A stream's capture between these two becomes *out. */
MLO_MUST_USE enum mlo_status cuda_capture_begin(struct mlo_program *program, struct mlo_error *err);
MLO_MUST_USE enum mlo_status cuda_capture_end(struct mlo_program *program, CUgraphExec *out,
                                              struct mlo_error *err);
/* Inputs that are on the device, through all steps; no graph. */
MLO_MUST_USE enum mlo_status cuda_program_enqueue_all(struct mlo_program *program, struct mlo_error *err);
MLO_MUST_USE enum mlo_status cuda_program_enqueue_outputs(struct mlo_program *program, struct mlo_error *err);
MLO_MUST_USE enum mlo_status cuda_program_enqueue_inputs(struct mlo_program *program, struct mlo_error *err);
MLO_MUST_USE enum mlo_status cuda_program_wait(struct mlo_program *program, struct mlo_error *err);
/* Records the steps alone, for inputs that are on the device, as program->device_only; once. */
MLO_MUST_USE enum mlo_status cuda_program_record(struct mlo_program *program, struct mlo_error *err);
/* together.c: `count` programs of one plan, of which `first` is one, that call in turn, each on its own
 * stream with its own values. Free it before `first` is unloaded. */
struct cuda_together;
MLO_MUST_USE enum mlo_status cuda_together_new(struct mlo_program *first, const struct mlo_tensor *inputs,
                                               unsigned count, struct cuda_together **out,
                                               struct mlo_error *err);
void cuda_together_free(struct cuda_together *together); /* NULL is fine */
/* One sample: the microseconds that a call takes of the device's time, of calls by all of them in turn. */
MLO_MUST_USE enum mlo_status cuda_together_time(struct cuda_together *together, double *us,
                                                struct mlo_error *err);
/* measure.c */
MLO_MUST_USE enum mlo_status cuda_program_profile(struct mlo_program *program,
                                                  const struct mlo_tensor *inputs, int calls, json_t **out,
                                                  struct mlo_error *err);
MLO_MUST_USE enum mlo_status cuda_program_measure(struct mlo_program *program,
                                                  const struct mlo_tensor *inputs,
                                                  const struct mlo_timing_request *request, bool steps,
                                                  json_t **out, struct mlo_error *err);
MLO_MUST_USE enum mlo_status cuda_plan_describe(const struct mlo_plan *plan, json_t **out,
                                                struct mlo_error *err);

/* --- cuDNN (dnn_graph.c, dnn_plan.c) -------------------------------------------------------------------- */

/* Descriptions of devices for compiling without one: {"deviceVer":900,…}, by compute capability. Written by
 * hand from data sheets. */
extern const struct mlo_embedded_file cuda_profiles[];
extern const size_t cuda_profiles_count;

/* Makes the work of a convolution or attention: the way it was chosen before ({"library":"cudnn","engine",
 * "knobs"}; NULL: heuristics), for the GPU at hand if its compute capability is that, else for the described
 * one. MLO_EUNSUPPORTED: cuDNN has no engine for it, or not that one. */
MLO_MUST_USE enum mlo_status cuda_dnn_build(const struct cuda_schedule *schedule,
                                            const struct cuda_step *step, int sm, const json_t *way,
                                            struct cuda_work *out, struct mlo_error *err);
/* Appends the ways: what the heuristics advise, best first, then each engine's knobs, at most `limit` of one
 * engine. */
MLO_MUST_USE enum mlo_status cuda_dnn_ways(const struct cuda_schedule *schedule, const struct cuda_step *step,
                                           int sm, int limit, json_t *ways, struct mlo_error *err);
/* The description of the GPU at hand, as cuDNN gives it; of `sm` by hand where there is none of that. */
MLO_MUST_USE enum mlo_status cuda_profile(int sm, struct mlo_buf *out, struct mlo_error *err);
/* Loads a work's plan; builds another by heuristics where it is of another device or library. */
MLO_MUST_USE enum mlo_status cuda_dnn_load(cudnnHandle_t handle, const struct cuda_schedule *schedule,
                                           const struct cuda_step *step, const struct cuda_work *work, int sm,
                                           const CUdeviceptr *at, struct cuda_dnn_program **out,
                                           size_t *workspace_bytes, struct mlo_error *err);
MLO_MUST_USE enum mlo_status cuda_dnn_run(cudnnHandle_t handle, struct cuda_dnn_program *p,
                                          CUdeviceptr workspace, struct mlo_error *err);
void cuda_dnn_free(struct cuda_dnn_program *p); /* NULL is fine */

/* --- cuBLASLt (lt.c) ------------------------------------------------------------------------------------ */

/* Chooses an algorithm by heuristics, or takes the work's; needs a device. `at`: the step's slots, in and
 * out. Free it. */
MLO_MUST_USE enum mlo_status cuda_lt_load(cublasLtHandle_t handle, const struct cuda_step *step,
                                          const struct cuda_work *work, const CUdeviceptr *at,
                                          size_t max_workspace_bytes, struct cuda_lt_program **out,
                                          size_t *workspace_bytes, struct mlo_error *err);
MLO_MUST_USE enum mlo_status cuda_lt_run(cublasLtHandle_t handle, struct cuda_lt_program *p,
                                         CUdeviceptr workspace, size_t workspace_bytes, CUstream stream,
                                         struct mlo_error *err);
void cuda_lt_free(struct cuda_lt_program *p); /* NULL is fine */
/* Appends the ways in which the device at hand can do it, best first: {"library":"cublaslt","algo":[…]}. */
MLO_MUST_USE enum mlo_status cuda_lt_ways(cublasLtHandle_t handle, const struct cuda_step *step,
                                          const CUdeviceptr *at, size_t max_workspace_bytes, int max,
                                          json_t *ways, struct mlo_error *err);
/* A work out of such a way. */
MLO_MUST_USE enum mlo_status cuda_lt_work(const json_t *way, struct cuda_work *out, struct mlo_error *err);

/* tune.c: measures the ways of each step on the device at hand (mlo_engine.tune). */
MLO_MUST_USE enum mlo_status cuda_program_tune(const struct mlo_model *model,
                                               const struct mlo_compile_options *options,
                                               const struct mlo_tuning_request *request, json_t **out,
                                               struct mlo_error *err);

/* handles.c: a program's handle of a library, made at first need and freed with it. */
MLO_MUST_USE enum mlo_status cuda_library_handles(struct mlo_program *program, enum cuda_work_kind kind,
                                                  struct mlo_error *err);
void cuda_library_handles_free(struct mlo_program *program);

#endif
