/* A dataset opened: arrays, the manifest's word on them, labels in memory. */
#ifndef MLO_MEASURE_DATASET_IMPL_H
#define MLO_MEASURE_DATASET_IMPL_H

#include "pipeline/measure/arrays_impl.h"
#include "pipeline/measure/measure.h"

/* What a dataset.json says; all strings in `arena`. */
struct mlo_manifest {
    struct mlo_arena *arena;
    bool idx;                /* else npz */
    const char *data;        /* path of the npz, or of the IDX images */
    const char *labels;      /* path of the IDX labels, or NULL */
    const char *postprocess; /* path of the model between outputs and metrics, or NULL */
    const char *input;       /* model input that the only data array feeds, or NULL */
    bool has_normalize;
    struct mlo_normalize normalize;
    int64_t first, count; /* count 0: to the end */
    json_t *classes;      /* array of names, or NULL; owned */
};

MLO_MUST_USE enum mlo_status mlo_manifest_load(const char *path, struct mlo_manifest *out,
                                               struct mlo_error *err);
void mlo_manifest_clear(struct mlo_manifest *manifest);

/* The manifest's form of a normalisation: an object with scale, mean, std, or the text form. */
MLO_MUST_USE enum mlo_status mlo_normalize_from_json(const json_t *value, struct mlo_normalize *out,
                                                     struct mlo_error *err);

struct mlo_feed_map {
    const char *input, *array;
};

struct mlo_dataset {
    struct mlo_manifest manifest; /* zeroed but for the arena when there is none */
    struct mlo_arrays arrays;
    const char *path;
    int64_t first, count, rows;      /* samples are rows first … first+count of `rows` */
    bool normalize, normalize_asked; /* there is one; it was given with the options */
    struct mlo_feed_map *map;
    size_t map_count;
    int64_t *labels, *groups;
};

/* An array that holds one row per sample and may feed an input: neither y nor group. */
bool mlo_dataset_is_data(const struct mlo_dataset *dataset, const struct mlo_array *array);

/* The samples' numbers of an array that has one integer each; MLO_EINVAL where it has not. *out is yours. */
MLO_MUST_USE enum mlo_status mlo_dataset_integers(const struct mlo_dataset *dataset, const char *name,
                                                  int64_t **out, struct mlo_error *err);

/* How one array feeds one input of a model. */
struct mlo_feed {
    const struct mlo_value *input;
    struct mlo_array *array;
    int rank; /* of the tensor; dims[0] is the batch */
    int64_t dims[MLO_MAX_RANK];
    size_t elements;                       /* per sample */
    int64_t channels;                      /* of axis 1; 1 where there is none */
    const struct mlo_normalize *normalize; /* NULL: conversion by value */
};
/* Finds and checks the array for an input; errors name both sides. */
MLO_MUST_USE enum mlo_status mlo_dataset_feed(const struct mlo_dataset *dataset,
                                              const struct mlo_model *model, const struct mlo_value *input,
                                              struct mlo_feed *out, struct mlo_error *err);

/* Samples [begin, begin+count) of a feed into `tensor`, initialised here. */
MLO_MUST_USE enum mlo_status mlo_feed_read(const struct mlo_dataset *dataset, const struct mlo_feed *feed,
                                           int64_t begin, int64_t count, struct mlo_tensor *tensor,
                                           struct mlo_error *err);

#endif
