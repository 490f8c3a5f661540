#pragma once
// The rows that Linear multiplies, in the form that a weight's kernel takes: as they are, as f32, or rounded
// to 8 bits. Rows that have to be converted go into memory that the caller names.

#include <cstdint>

#include "kernels/cpu/cpu_device.h"

namespace somnus::cpu {

using LinearKernel = void (*)(const LinearArgs& args, int64_t row_begin, int64_t row_end, int64_t panel_begin,
                              int64_t panel_end);

inline int64_t NumPanels(int64_t n) { return (n + kPanelWidth - 1) / kPanelWidth; }

// The product with weights of type `weight` and x of type `x`, once x is prepared.
LinearKernel LinearKernelOf(const KernelTable& kernels, DataType weight, DataType x);

// Rows that one call of a kernel takes, so that they stay in a core's cache while the panels pass by.
int64_t LinearBlockRows(const KernelTable& kernels, int64_t k);

// Sets args->x and args->x_stride to x in the form that the kernel takes; args->n must be set. `memory`:
// x.rows
// * LinearRowBytes(x.cols) bytes, aligned to 64.
void PrepareLinearInput(CpuDevice& device, const TensorView& x, DataType weight, char* memory,
                        LinearArgs* args);

// The same for rows[i], i in [0, count), as rows one after another: always a copy.
void GatherLinearInput(CpuDevice& device, const TensorView& x, const int32_t* rows, int64_t count,
                       DataType weight, char* memory, LinearArgs* args);

// Into how many pieces a thread's part of a product is cut, so that other threads can take some over; 1: no
// thread takes over. `part_bytes`: of weights.
int64_t PiecesOfPart(const KernelTable& kernels, int64_t rows, int64_t part_bytes);

}  // namespace somnus::cpu
