#pragma once

#include <ATen/core/Generator.h>
#include <ATen/record_function.h>

#include <exception>
#include <unordered_set>
#include <vector>

#include "headroom/runtime/network/network.h"
#include "headroom/runtime/state.h"

namespace headroom::internal {

/// What a forward uses besides its arguments: parameters, buffers, and tensors and generators that it captured.
struct SideEffects {
  Tensors read;                           ///< Tensors that it read, one per storage, without history.
  Tensors written;                        ///< Tensors of `read` whose memory was written.
  std::vector<at::Generator> generators;  ///< The user's own generators from which it drew.
};

/// Watches the operators that the constructing thread calls during its lifetime. At its end, it restores the memory
/// that they wrote of tensors outside the watched forwards, values and version counters, and the user's own generators.
/// There can be one watch per thread at a time.
///
/// An operator's schema says which arguments it writes; batch norm's running statistics are known by name. Writes to
/// memory without an operator (a data pointer, a compiled kernel) are not seen.
class OperatorWatch {
 public:
  /// Starts watching. The memory of `inputs`, which are arguments, is restored as well.
  explicit OperatorWatch(const Tensors& inputs = {});
  ~OperatorWatch();
  OperatorWatch(const OperatorWatch&) = delete;
  OperatorWatch& operator=(const OperatorWatch&) = delete;

  /// Starts a forward on `arguments`: tensors that are allocated from here on are its own.
  void begin(const Tensors& arguments);

  /// Returns whether an operator has used the tensor's memory since begin(), and did not allocate it itself.
  bool has_read(const torch::Tensor& tensor) const;

  /// Returns what the forward since begin() used that outlives it. Throws what prevented the watch from saving memory.
  SideEffects end();

 private:
  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& call);
  static void on_end(const at::RecordFunction& call, at::ObserverContext* context);

  /// The memory of a storage before the first write to it.
  struct SavedMemory {
    torch::Tensor tensor;
    torch::Tensor copy;
    int64_t version = 0;
  };

  template <typename See>
  static void run_callback(const See& see);
  void see_inputs(const at::RecordFunction& call);
  void see_outputs(const at::RecordFunction& call);
  void see(const torch::Tensor& tensor, bool is_written);
  void save(const torch::Tensor& tensor);

  at::CallbackHandle handle_ = 0;
  std::unordered_set<const c10::StorageImpl*> inputs_;
  std::exception_ptr failure_;                        ///< The first exception of a callback since begin().
  int depth_ = 0;                                     ///< Number of operators that are running inside each other.
  std::unordered_set<const c10::StorageImpl*> own_;   ///< Storages of arguments, and storages allocated since begin().
  std::unordered_set<const c10::StorageImpl*> read_;  ///< Storages of effects_.read.
  std::unordered_set<const c10::StorageImpl*> written_;
  SideEffects effects_;
  std::vector<SavedMemory> saved_;
  std::vector<RandomState> saved_random_;
};

}  // namespace headroom::internal
