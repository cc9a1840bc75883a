#!/bin/bash
# sbatch deploy/fit-slurm.sh LOG MODEL: four machines fit one model. LOG and MODEL are on a file system that all share.
#SBATCH --job-name=fewfold-fit
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
set -euo pipefail

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK

srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 1 --max-restarts 3 \
  --rdzv-backend c10d --rdzv-endpoint "$first:29500" --rdzv-id "$SLURM_JOB_ID" \
  -m fewfold fit "$1" --out "$2"
