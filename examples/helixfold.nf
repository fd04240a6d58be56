#!/usr/bin/env nextflow
// Search alignments on CPU nodes and fold on GPU nodes, with a few targets per task.
//
//   nextflow run examples/helixfold.nf --targets proteins.fasta --search "--databases /data/colabfold" \
//       --predict "--dtype bfloat16" -resume
//
// Both processes can be used as modules: their channels are (meta, files) as in nf-core, and FOLD also emits the tables
// that nf-core/proteinfold reads. Set the resources of their labels in nextflow.config.

params.targets = null
params.search = ''
params.predict = ''
params.per_task = 20
params.outdir = 'results'

process SEARCH {
    tag "${meta.id}"
    label 'process_high'

    input:
    tuple val(meta), path(fasta)
    val options

    output:
    tuple val(meta), path('features'), emit: features

    // Exit code 1: some targets failed, and all others succeeded.
    script:
    """
    helixfold features ${fasta} --output features --threads ${task.cpus} ${options} || [ \$? -eq 1 ]
    """
}

process FOLD {
    tag "${meta.id}"
    label 'process_gpu'
    publishDir params.outdir, mode: 'copy'

    input:
    tuple val(meta), path(features)
    val options

    output:
    tuple val(meta), path('predictions/*'), emit: raw
    tuple val(meta), path('predictions/*/ranked_0.pdb'), emit: top_ranked_pdb, optional: true
    tuple val(meta), path('predictions/*/ranked_*.pdb'), emit: pdb, optional: true
    tuple val(meta), path('predictions/*/*_plddt.tsv'), emit: multiqc, optional: true
    tuple val(meta), path('predictions/*/*_msa.tsv'), emit: msa, optional: true
    tuple val(meta), path('predictions/*/*_pae.tsv'), emit: pae, optional: true
    tuple val(meta), path('predictions/*/*_ptm.tsv'), emit: ptm, optional: true

    script:
    """
    helixfold predict --features ${features} --output predictions ${options} || [ \$? -eq 1 ]
    """
}

workflow {
    targets = channel.fromPath(params.targets, checkIfExists: true)
        .splitFasta(by: params.per_task, file: true)
        .map { fasta -> tuple([id: fasta.baseName], fasta) }
    SEARCH(targets, params.search)
    FOLD(SEARCH.out.features, params.predict)
}
