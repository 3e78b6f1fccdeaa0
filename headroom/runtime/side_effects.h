#pragma once

#include <ATen/core/Generator.h>
#include <ATen/record_function.h>

#include <unordered_set>
#include <vector>

#include "headroom/runtime/kernels.h"
#include "headroom/runtime/network.h"

namespace headroom {

/// What a forward uses beside its arguments: parameters, buffers, and tensors and generators that it captured.
struct SideEffects {
  Tensors read;                           ///< one tensor per storage, without history
  Tensors written;                        ///< those of `read` whose memory was written
  std::vector<at::Generator> generators;  ///< the user's own generators that it drew from
};

/// Watches the operators that the constructing thread calls during its lifetime. At its end it restores the memory that
/// they wrote, values and version counters, of tensors outside the watched forwards, and the user's own generators. One
/// watch per thread at a time.
///
/// An operator's schema says which arguments it writes; batch norm's running statistics are known by name. Memory that is
/// written without an operator (a data pointer, a compiled kernel) is not seen.
class OperatorWatch {
 public:
  /// `inputs`: arguments whose memory is restored as well.
  explicit OperatorWatch(const Tensors& inputs = {});
  ~OperatorWatch();
  OperatorWatch(const OperatorWatch&) = delete;
  OperatorWatch& operator=(const OperatorWatch&) = delete;

  /// Starts a forward on `arguments`: tensors that are made from here on are its own.
  void begin(const Tensors& arguments);

  /// Whether an operator has used the tensor's memory since begin(), and did not make it itself.
  bool has_read(const torch::Tensor& tensor) const;

  /// What the forward since begin() used that outlives it.
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

  void see_inputs(const at::RecordFunction& call);
  void see_outputs(const at::RecordFunction& call);
  void see(const torch::Tensor& tensor, bool is_written);
  void save(const torch::Tensor& tensor);

  at::CallbackHandle handle_ = 0;
  std::unordered_set<const c10::StorageImpl*> inputs_;
  int depth_ = 0;                                     ///< operators that are running, one inside the other
  std::unordered_set<const c10::StorageImpl*> own_;   ///< storages of arguments, and storages made since begin()
  std::unordered_set<const c10::StorageImpl*> read_;  ///< storages of effects_.read
  std::unordered_set<const c10::StorageImpl*> written_;
  SideEffects effects_;
  std::vector<SavedMemory> saved_;
  std::vector<RandomState> saved_random_;
};

}  // namespace headroom
