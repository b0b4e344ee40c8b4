// The operators that Python sees (torch.ops.wellhead): checks, allocation, and the call.
#include <ATen/core/Tensor.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <optional>
#include <string>

#include "bfloat16.h"
#include "int8.h"
#include "kernels.h"
#include "team.h"

extern "C" void omp_set_num_threads(int);

namespace wellhead {
namespace {

using at::Tensor;
using c10::ScalarType;

void check(const Tensor& t, const char* name, ScalarType type, int64_t dims) {
  TORCH_CHECK_VALUE(t.is_cpu() && t.is_contiguous() && t.scalar_type() == type && t.dim() == dims, "wellhead: ", name,
                    " must be a contiguous CPU tensor of ", type, " with ", dims, " axes, not ", t.scalar_type(), " ", t.sizes());
}

const float* floats(const std::optional<Tensor>& t, const char* name, int64_t size) {
  if (!t.has_value()) return nullptr;
  check(*t, name, ScalarType::Float, 1);
  TORCH_CHECK_VALUE(t->size(0) == size, "wellhead: ", name, " must have ", size, " elements, not ", t->size(0));
  return t->const_data_ptr<float>();
}

Tensor empty(at::IntArrayRef sizes, ScalarType type) {
  return Tensor(at::detail::empty_cpu(sizes, type, false, std::nullopt));
}

// Packed by NativeOps: [blocks, in, kCols] or, in groups of 2 or (int8) 4, [blocks, in / group, kCols, group]; a gated one has
// kCols split in two.
Weight weight(const Tensor& w, int64_t out, bool gated) {
  const int64_t group = w.scalar_type() == ScalarType::Char ? 4 : w.size(-1) == 2 ? 2 : 1;
  check(w, gated ? "a packed gated weight" : "a packed weight", w.scalar_type(), 3 + (group > 1) + gated);
  const int64_t columns = w.size(2) * (gated ? w.size(3) : 1), capacity = w.size(0) * columns / (gated ? 2 : 1);
  TORCH_CHECK_VALUE(columns == 32 && out >= 0 && out <= capacity, "wellhead: ", out, " columns of a packed weight ", w.sizes());
  return {w.const_data_ptr(), w.scalar_type(), group == 2, w.size(0), w.size(1) * group, out, nullptr};
}

Weight weight_for(const Tensor& w, const std::optional<Tensor>& scales, int64_t out, bool gated, const Tensor& x) {
  Weight made = weight(w, out, gated);
  TORCH_CHECK_VALUE((made.type == ScalarType::Char) == scales.has_value(), "wellhead: an int8 weight has scales, and no other");
  if (scales.has_value()) {
    check(*scales, "the scales", ScalarType::Float, 3);
    TORCH_CHECK_VALUE(scales->size(0) == 2 && scales->size(1) == made.blocks && scales->size(2) == 32, "wellhead: scales ", scales->sizes(),
                      " of ", made.blocks, " blocks");
    TORCH_CHECK_VALUE(w.size(-1) == 4 && made.in <= 65536, "wellhead: an int8 weight ", w.sizes());
    made.scales = scales->const_data_ptr<float>();
    made.type = x.scalar_type();
    TORCH_CHECK_VALUE(c10::isFloatingType(made.type) && made.type != ScalarType::Double, "wellhead: x is ", made.type);
  }
  check(x, "x", made.type, 2);
  TORCH_CHECK_VALUE(x.size(1) == made.in, "wellhead: x has ", x.size(1), " columns, the weight takes ", made.in);
  return made;
}

Tensor linear_op(const Tensor& x, const Tensor& w, const std::optional<Tensor>& scales, int64_t out, const std::optional<Tensor>& bias) {
  const Weight made = weight_for(w, scales, out, false, x);
  Tensor result = empty({x.size(0), out}, ScalarType::Float);
  linear(x.const_data_ptr(), x.size(0), made, floats(bias, "bias", out), result.mutable_data_ptr<float>());
  return result;
}

void linear_add_op(Tensor residual, const Tensor& x, const Tensor& w, const std::optional<Tensor>& scales,
                   const std::optional<Tensor>& bias) {
  check(residual, "residual", ScalarType::Float, 2);
  const int64_t out = residual.size(1);
  const Weight made = weight_for(w, scales, out, false, x);
  TORCH_CHECK_VALUE(residual.size(0) == x.size(0), "wellhead: residual has ", residual.size(0), " rows, x has ", x.size(0));
  linear_add(x.const_data_ptr(), x.size(0), made, floats(bias, "bias", out), residual.mutable_data_ptr<float>());
}

Tensor glu_op(const Tensor& x, const Tensor& w, const std::optional<Tensor>& scales, int64_t out, bool silu) {
  const Weight made = weight_for(w, scales, out, true, x);
  Tensor result = empty({x.size(0), out}, made.type);
  glu(x.const_data_ptr(), x.size(0), made, silu ? Activation::silu : Activation::gelu_tanh, result.mutable_data_ptr());
  return result;
}

Tensor embed_op(const Tensor& ids, const Tensor& w, int64_t out, double scale) {
  check(ids, "ids", ScalarType::Long, 1);
  const Weight made = weight(w, out, false);
  TORCH_CHECK_VALUE(made.type != ScalarType::Char, "wellhead: embeddings are not kept as int8");
  const int64_t* id = ids.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < ids.size(0); ++i) TORCH_CHECK_INDEX(id[i] >= 0 && id[i] < out, "wellhead: token id ", id[i], " of ", out);
  Tensor result = empty({ids.size(0), made.in}, ScalarType::Float);
  embed(id, ids.size(0), made, static_cast<float>(scale), result.mutable_data_ptr<float>());
  return result;
}

Tensor norm_op(const Tensor& x, const Tensor& w, double eps, ScalarType type) {
  check(x, "x", ScalarType::Float, 2);
  const float* scales = floats(w, "a norm weight", x.size(1));
  Tensor result = empty(x.sizes(), type);
  norm(x.const_data_ptr<float>(), x.size(0), x.size(1), scales, static_cast<float>(eps), type, result.mutable_data_ptr());
  return result;
}

void norm_add_op(Tensor residual, const Tensor& x, const Tensor& w, double eps) {
  check(x, "x", ScalarType::Float, 2);
  check(residual, "residual", ScalarType::Float, 2);
  TORCH_CHECK_VALUE(residual.sizes() == x.sizes(), "wellhead: residual ", residual.sizes(), " and x ", x.sizes(), " differ");
  const float* scales = floats(w, "a norm weight", x.size(1));
  norm_add(x.const_data_ptr<float>(), x.size(0), x.size(1), scales, static_cast<float>(eps), residual.mutable_data_ptr<float>());
}

std::tuple<Tensor, Tensor, Tensor> peak_op(const Tensor& x) {
  check(x, "x", ScalarType::Float, 2);
  const int64_t rows = x.size(0);
  TORCH_CHECK_VALUE(x.size(1) > 0, "wellhead: rows without elements have no largest one");
  Tensor most = empty({rows}, ScalarType::Float), at = empty({rows}, ScalarType::Long), finite = empty({rows}, ScalarType::Bool);
  peak(x.const_data_ptr<float>(), rows, x.size(1), most.mutable_data_ptr<float>(), at.mutable_data_ptr<int64_t>(),
       finite.mutable_data_ptr<bool>());
  return {most, at, finite};
}

Pages pages(const Tensor& kv, bool pairs, int64_t layer, int64_t size) {
  check(kv, "the pages", kv.scalar_type(), 5);
  TORCH_CHECK_INDEX(layer >= 0 && layer < kv.size(1), "wellhead: layer ", layer, " of ", kv.size(1));
  // Shared by several threads and written by rope_store alone, hence mutable here and const to `attend`.
  void* data = const_cast<void*>(kv.const_data_ptr());
  return {data, kv.scalar_type(), pairs, kv.size(0), kv.size(1), layer, kv.size(2), size, kv.size(4) / size};
}

Tensor rope_store_op(const Tensor& qkv, Tensor kv, bool pairs, int64_t layer, int64_t page_size, int64_t heads,
                     const Tensor& positions, const Tensor& slots, const std::optional<Tensor>& cos_sin, const std::optional<Tensor>& q_norm,
                     const std::optional<Tensor>& k_norm, double eps) {
  const Pages made = pages(kv, pairs, layer, page_size);
  check(qkv, "qkv", ScalarType::Float, 2);
  check(positions, "positions", ScalarType::Long, 1);
  check(slots, "slots", ScalarType::Long, 1);
  const int64_t tokens = qkv.size(0), columns = (heads + 2 * made.heads) * made.dim;
  TORCH_CHECK_VALUE(qkv.size(1) == columns, "wellhead: qkv has ", qkv.size(1), " columns, not ", columns);
  TORCH_CHECK_VALUE(positions.size(0) == tokens && slots.size(0) == tokens, "wellhead: ", tokens, " tokens need as many positions and slots");
  const int64_t* position = positions.const_data_ptr<int64_t>();
  const int64_t* slot = slots.const_data_ptr<int64_t>();
  if (cos_sin) check(*cos_sin, "cos_sin", ScalarType::Float, 2);
  if (cos_sin) TORCH_CHECK_VALUE(cos_sin->size(1) == made.dim, "wellhead: cos_sin has ", cos_sin->size(1), " columns, not ", made.dim);
  for (int64_t t = 0; t < tokens; ++t) {
    TORCH_CHECK_INDEX(slot[t] >= 0 && slot[t] < made.pages * page_size, "wellhead: slot ", slot[t], " of ", made.pages * page_size);
    TORCH_CHECK_INDEX(!cos_sin || (position[t] >= 0 && position[t] < cos_sin->size(0)), "wellhead: position ", position[t], " has no rope");
  }
  const Rope rope{cos_sin ? cos_sin->const_data_ptr<float>() : nullptr, floats(q_norm, "q_norm", made.dim),
                  floats(k_norm, "k_norm", made.dim), static_cast<float>(eps)};
  Tensor q = empty({tokens, heads, made.dim}, made.type);
  rope_store(qkv.const_data_ptr<float>(), tokens, heads, position, slot, rope, made, q.mutable_data_ptr());
  return q;
}

void check_sequences(const Sequences& all, const Pages& kv, int64_t tokens) {
  for (int64_t s = 0; s < all.count; ++s) {
    const int64_t begin = all.starts[s], end = all.starts[s + 1], len = all.lens[s], needed = (len + kv.size - 1) / kv.size;
    TORCH_CHECK_INDEX(begin >= 0 && begin <= end && end <= tokens && end - begin <= len && needed <= all.width,
                      "wellhead: sequence ", s, " has tokens ", begin, " to ", end, " of ", tokens, " and ", len, " keys");
    for (int64_t p = 0; p < needed && begin < end; ++p) {
      const int64_t page = all.table[s * all.width + p];
      TORCH_CHECK_INDEX(page >= 0 && page < kv.pages, "wellhead: sequence ", s, " needs page ", page, " of ", kv.pages);
    }
  }
}

Tensor attend_op(const Tensor& q, const Tensor& kv, bool pairs, int64_t layer, int64_t page_size, const Tensor& starts,
                 const Tensor& lens, const Tensor& table, double scale, int64_t window) {
  const Pages made = pages(kv, pairs, layer, page_size);
  check(q, "q", made.type, 3);
  check(starts, "starts", ScalarType::Int, 1);
  check(lens, "kv_lens", ScalarType::Int, 1);
  check(table, "page_table", ScalarType::Int, 2);
  TORCH_CHECK_VALUE(q.size(2) == made.dim && q.size(1) % made.heads == 0, "wellhead: q ", q.sizes(), " for ", made.heads, " heads of ", made.dim);
  TORCH_CHECK_VALUE(scale > 0 && window >= 0, "wellhead: scale ", scale, " and window ", window, " must be positive");
  TORCH_CHECK_VALUE(starts.size(0) == lens.size(0) + 1 && table.size(0) == lens.size(0), "wellhead: starts, kv_lens and page_table disagree");
  const Sequences all{starts.const_data_ptr<int32_t>(), lens.const_data_ptr<int32_t>(), table.const_data_ptr<int32_t>(), lens.size(0),
                      table.size(1)};
  check_sequences(all, made, q.size(0));
  Tensor out = empty({q.size(0), q.size(1) * q.size(2)}, made.type);
  attend(q.const_data_ptr(), q.size(1), made, all, static_cast<float>(scale), window, out.mutable_data_ptr());
  return out;
}

}  // namespace

// The calling thread's share of torch's own operators runs on it alone from now on; other threads are not affected.
// Trap: torch gives each thread the number of torch.set_num_threads when it first asks, so it is made to ask before.
void lone_torch_op() {
  at::get_num_threads();
  omp_set_num_threads(1);
}

TORCH_LIBRARY(wellhead, m) {
  m.def("set_team_size(int size) -> ()", &set_team_size);
  m.def("team_size() -> int", &team_size);
  m.def("lone_torch() -> ()", &lone_torch_op);
  m.def("unit16() -> str", [] { return std::string(unit16()); });
  m.def("unit8() -> str", [] { return std::string(unit8()); });
  m.def("linear(Tensor x, Tensor w, Tensor? scales, int out, Tensor? bias) -> Tensor");
  m.def("linear_add_(Tensor(a!) residual, Tensor x, Tensor w, Tensor? scales, Tensor? bias) -> ()");
  m.def("glu(Tensor x, Tensor w, Tensor? scales, int out, bool silu) -> Tensor");
  m.def("embed(Tensor ids, Tensor w, int out, float scale) -> Tensor");
  m.def("norm(Tensor x, Tensor w, float eps, ScalarType type) -> Tensor");
  m.def("peak(Tensor x) -> (Tensor, Tensor, Tensor)");
  m.def("norm_add_(Tensor(a!) residual, Tensor x, Tensor w, float eps) -> ()");
  m.def(
      "rope_store(Tensor qkv, Tensor(a!) kv, bool pairs, int layer, int page_size, int heads, Tensor positions, Tensor slots, "
      "Tensor? cos_sin, Tensor? q_norm, Tensor? k_norm, float eps) -> Tensor");
  m.def(
      "attend(Tensor q, Tensor kv, bool pairs, int layer, int page_size, Tensor starts, Tensor kv_lens, Tensor page_table, "
      "float scale, int window) -> Tensor");
}

// For the CPU alone, so that tracers can have implementations of their own.
TORCH_LIBRARY_IMPL(wellhead, CPU, m) {
  m.impl("linear", &linear_op);
  m.impl("linear_add_", &linear_add_op);
  m.impl("glu", &glu_op);
  m.impl("embed", &embed_op);
  m.impl("norm", &norm_op);
  m.impl("peak", &peak_op);
  m.impl("norm_add_", &norm_add_op);
  m.impl("rope_store", &rope_store_op);
  m.impl("attend", &attend_op);
}

}  // namespace wellhead
