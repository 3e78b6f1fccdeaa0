#pragma once

#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "headroom/runtime/network/network.h"

namespace headroom::internal {

/// The state of random generators, which can be restored: of the CPU's default generator, of the device's where that is
/// another one, and of the user's own generators that are listed.
class RandomState {
 public:
  static RandomState now(torch::Device device, const std::vector<at::Generator>& generators = {});
  static RandomState of(const std::vector<at::Generator>& generators);
  /// Restores all generators. If one cannot be restored, the others are, and its error is thrown.
  void restore() const;
  bool operator==(const RandomState& other) const;

 private:
  struct Saved {
    at::Generator generator;
    at::Generator copy;
  };
  std::vector<Saved> saved_;
};

/// Returns a lock to hold while a node draws random numbers that are replayed. All threads share the default
/// generators, and a replay must not see the draws of another step.
std::unique_lock<std::recursive_mutex> lock_random();

/// Returns the number of changes in place that autograd has counted; 0 for inference tensors, which do not count them.
int64_t version_of(const torch::Tensor& tensor);
void set_version(const torch::Tensor& tensor, int64_t version);

/// Returns the type and shape of a tensor as PyTorch's messages write them: CPUFloatType [2, 2].
std::string type_and_shape(const torch::Tensor& tensor);

/// Throws PyTorch's error for a tensor that was changed in place since the step first read it. `tensor` is its
/// type_and_shape(), and `reader` says in a sentence what reads it again.
[[noreturn]] void throw_changed_in_place(const std::string& tensor, int64_t version, int64_t expected,
                                         const std::string& reader);

/// Returns whether a tensor shares memory with one of `tensors`.
bool is_alias_in(const Tensors& tensors, const torch::Tensor& tensor);

/// Copies all bytes of a tensor's storage, to a new storage or to one of the same size. Autograd does not notice.
torch::Tensor copy_memory(const torch::Tensor& tensor);
void copy_memory_to(const torch::Tensor& to, const torch::Tensor& from);

/// Writes saved values to buffers without autograd noticing; does nothing where nothing was saved.
void restore_buffers(const Tensors& buffers, const Tensors& saved);
Tensors copy_buffers(const Tensors& buffers);

/// Runs several functions, each of them even if an earlier one throws.
class EachInTurn {
 public:
  template <typename Function>
  void run(const Function& function) {
    try {
      function();
    } catch (...) {
      if (!failure_) failure_ = std::current_exception();
    }
  }

  /// Throws the first exception, if there was one.
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::exception_ptr failure_;
};

/// Runs a function at the end of a scope and drops its exceptions: a destructor that throws would end the process and
/// hide the error that is being handled. An error of a CUDA device is not lost, since each later call reports it again.
template <typename Function>
void run_without_throwing(const Function& function) noexcept {
  try {
    function();
  } catch (...) {
  }
}

/// Restores the random numbers and buffers of an earlier moment during its lifetime. The storage of each buffer
/// exchanges its memory with the copy in `then` (copy_memory(); if empty, buffers stay as they are), so that views of
/// it see the earlier values too and nothing is copied. Meanwhile each buffer's version is the one of `versions`, so
/// that a tape recorded here later raises PyTorch's error exactly where the first tape would.
///
/// The constructor throws where a buffer has another size than its copy, and then nothing has changed.
class EarlierState {
 public:
  EarlierState(torch::Device device, const std::optional<RandomState>& random, Tensors buffers, const Tensors& then,
               const std::vector<int64_t>& versions = {}, const std::vector<at::Generator>& generators = {});
  ~EarlierState() {
    run_without_throwing([this] { end(); });
  }
  EarlierState(const EarlierState&) = delete;
  EarlierState& operator=(const EarlierState&) = delete;

  /// Restores the state of the construction, which the destructor does only where this was not called. Everything that
  /// can be restored is, and the first error is thrown.
  void end();

 private:
  EarlierState(Tensors buffers, const Tensors& then) : buffers_(std::move(buffers)), then_(then) {}

  std::optional<RandomState> random_now_;
  Tensors buffers_;
  Tensors then_;
  size_t exchanged_ = 0;  ///< Number of buffers whose memory is in their copies.
  std::vector<int64_t> versions_now_;
};

/// Restores random generators and buffers at its end to their state at its construction, versions included.
class KeptState {
 public:
  KeptState(Tensors buffers, torch::Device device, const std::vector<at::Generator>& generators = {});
  ~KeptState() {
    run_without_throwing([this] { restore(); });
  }
  KeptState(const KeptState&) = delete;
  KeptState& operator=(const KeptState&) = delete;

  /// Restores what can be restored, and throws the first error.
  void restore() const;
  bool random_has_changed() const;
  bool buffers_have_changed() const;  ///< Whether a buffer has changed in value or in version.

 private:
  torch::Device device_;
  std::vector<at::Generator> generators_;
  RandomState random_;
  Tensors buffers_;
  Tensors saved_;
  std::vector<int64_t> versions_;
};

}  // namespace headroom::internal
