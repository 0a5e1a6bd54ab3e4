// Tensors whose memory is a file, and copies that do not use libtorch's threads.

#include "shim.h"

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <omp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

namespace {

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// Opens a file without a name: it ends with the process, however the process ends.
int open_unnamed(const char* folder) {
  const int file = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return file;
  // Some file systems have only files with names.
  std::string path = std::string(folder) + "/vidtui-XXXXXX";
  const int named = mkostemp(path.data(), O_CLOEXEC);
  if (named >= 0) unlink(path.c_str());
  return named;
}

}  // namespace

extern "C" {

// A CPU tensor of zeros of a size, with the dtype of `like`, whose memory is a new file in `folder`. The file's space is reserved
// here, because a write to a mapping cannot report a full disk.
TorchError* vidtui_mapped_zeros(const char* folder, const int64_t* size, size_t dims, const at::Tensor* like,
                          at::Tensor** out) {
  return guarded([&] {
    const auto type = like->scalar_type();
    const at::IntArrayRef shape(size, dims);
    const size_t bytes = std::max<size_t>(static_cast<size_t>(c10::multiply_integers(shape)) * c10::elementSize(type), 1);
    const int file = open_unnamed(folder);
    if (file < 0) fail("cannot create a file");
    const int reserved = posix_fallocate(file, 0, static_cast<off_t>(bytes));
    if (reserved != 0) {
      close(file);
      errno = reserved;
      fail("cannot reserve the space of a file");
    }
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    const int error = errno;
    close(file);
    if (memory == MAP_FAILED) {
      errno = error;
      fail("cannot map a file");
    }
    const auto unmap = [bytes](void* start) { munmap(start, bytes); };
    *out = new at::Tensor(at::from_blob(memory, shape, unmap, at::TensorOptions().dtype(type)));
  });
}

// Takes the pages of a tensor of vidtui_mapped_zeros out of the process's memory. The file keeps their content.
TorchError* vidtui_mapped_release(const at::Tensor* tensor) {
  return guarded([&] {
    const auto& storage = tensor->storage();
    if (storage.nbytes() > 0 && madvise(storage.mutable_data(), storage.nbytes(), MADV_DONTNEED) != 0) {
      fail("cannot release the pages of a mapped file");
    }
  });
}

// Lets the operators of this thread compute in it alone.
void vidtui_compute_alone() {
  // libtorch sets the number of a thread's helpers when the thread first needs it.
  drop_error(guarded([] { (void)at::get_num_threads(); }));
  omp_set_num_threads(1);
}

// Copies one contiguous CPU tensor to another of the same length in this thread alone. libtorch's own copy would start threads that
// compete with those that compute.
TorchError* vidtui_copy_in_thread(const at::Tensor* to, const at::Tensor* from) {
  return guarded([&] {
    TORCH_CHECK(to->is_contiguous() && from->is_contiguous() && to->numel() == from->numel(), "sizes differ");
    TORCH_CHECK(to->is_cpu() && from->is_cpu(), "both tensors must be on the CPU");
    if (to->scalar_type() == from->scalar_type()) {
      std::memcpy(to->mutable_data_ptr(), from->const_data_ptr(), to->nbytes());
      return;
    }
    // libtorch copies pieces of this size in the calling thread.
    at::NoGradGuard no_grad;
    constexpr int64_t kPiece = 16 * 1024;
    const auto target = to->view(-1), source = from->view(-1);
    for (int64_t start = 0; start < target.numel(); start += kPiece) {
      const int64_t len = std::min(kPiece, target.numel() - start);
      target.narrow(0, start, len).copy_(source.narrow(0, start, len));
    }
  });
}

}  // extern "C"
